"""The paper's procedures under the paper's names.

For readers who hold the paper beside the code. The weights θ0 of its arguments are those of the module.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp._checks import check_rank
from ntkgp._types import MeanFunction
from ntkgp.covariance import CovarianceEstimate, CovariancePlan, TightCovariance, plan_covariance
from ntkgp.linalg.svd import DenseSVD, Lanczos, PartialSVD, SVDMethod
from ntkgp.pose import pose
from ntkgp.predictors import Predictors, train_predictors
from ntkgp.problem import Problem
from ntkgp.training import AcceleratedGD, Trainer


@dataclass(frozen=True)
class TrainedMean:
    """θ* of Algorithm 1, with what :func:`query_posterior_mean` needs beside it."""

    problem: Problem
    predictors: Predictors


def train_posterior_mean(
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    noise_var: float | Tensor,
    trainer: Trainer | None = None,
    prior_mean: MeanFunction | None = None,
    prior_var: float | Mapping[str, float] = 1.0,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> TrainedMean:
    """Algorithm 1, Train-Posterior-Mean: minimise (1/N)‖ŷ − f(x; θ)‖² + β‖θ − θ0‖², ŷ = y + f(x; θ0), β = σ²/N.

    Arguments as in :func:`fit`. Cost: one training of the network; memory 6·P numbers.

    Example:
        >>> import torch, ntkgp
        >>> net = ntkgp.mlp(1, width=32, generator=torch.Generator().manual_seed(0))
        >>> x = torch.linspace(-1, 1, 6).unsqueeze(1)
        >>> trained = train_posterior_mean(net, x, x[:, 0].sin(), noise_var=0.1)
        >>> query_posterior_mean(trained, x).shape
        torch.Size([6])
    """
    trainer = AcceleratedGD() if trainer is None else trainer
    problem = pose(module, x, y, noise_var=noise_var, prior_mean=prior_mean, prior_var=prior_var, dtype=trainer.dtype)
    # The trainer's step and metric come from the first singular vectors; three digits of them are enough.
    head = Lanczos(tol=1e-3)(problem.whitened, min(10, *problem.jacobian.shape), generator)
    return TrainedMean(problem, train_predictors(problem, problem.residual.unsqueeze(1), ["mean"], head, trainer, progress))


def query_posterior_mean(trained: TrainedMean, x: Tensor) -> Tensor:
    """Algorithm 1, Query-Posterior-Mean: m(x′_j) + f(x′_j; θ*) − f(x′_j; θ0) for every j, in the shape of y.

    Cost: two forward passes over the M points.

    Example:
        >>> import torch, ntkgp
        >>> net = ntkgp.mlp(1, width=32, generator=torch.Generator().manual_seed(0))
        >>> x = torch.linspace(-1, 1, 6).unsqueeze(1)
        >>> trained = train_posterior_mean(net, x, x[:, 0].sin(), noise_var=0.1)
        >>> query_posterior_mean(trained, torch.zeros(2, 1)).shape
        torch.Size([2])
    """
    problem = trained.problem
    x = problem.checked(x)
    return problem.shaped(problem.mean_at(x) + trained.predictors(x).squeeze(1))


def partial_svd(
    module: nn.Module,
    x: Tensor,
    rank: int,
    *,
    svd: SVDMethod | None = None,
    prior_var: float | Mapping[str, float] = 1.0,
    generator: torch.Generator | None = None,
) -> PartialSVD:
    """Partial-SVD: the top K singular triplets of the Jacobian J(x), without ever storing it.

    Cost and memory are those of the method; :class:`DenseSVD`, the default, holds the N·C × N·C kernel.

    Example:
        >>> import torch, ntkgp
        >>> net = ntkgp.mlp(1, width=32, generator=torch.Generator().manual_seed(0))
        >>> svd = partial_svd(net, torch.linspace(-1, 1, 6).unsqueeze(1), 3)
        >>> svd.u.shape, svd.s.shape
        (torch.Size([6, 3]), torch.Size([3]))
    """
    problem = pose(module, x, None, noise_var=1.0, prior_var=prior_var, dtype=torch.float64)
    check_rank(rank, *problem.jacobian.shape)
    return (DenseSVD() if svd is None else svd)(problem.whitened, rank, generator)


@dataclass(frozen=True)
class TrainedCovariance:
    """Σ and the trained weights of Algorithm 2, with what :func:`query_posterior_covariance` needs beside them."""

    plan: CovariancePlan
    predictors: Predictors


def train_posterior_covariance(
    module: nn.Module,
    x: Tensor,
    rank: int,
    *,
    noise_var: float | Tensor,
    tail: int = 0,
    svd: SVDMethod | None = None,
    trainer: Trainer | None = None,
    covariance: CovarianceEstimate | None = None,
    prior_var: float | Mapping[str, float] = 1.0,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> TrainedCovariance:
    """Algorithm 2, Train-Posterior-Covariance: one predictor per column of U (K = rank), and `tail` (the paper's K′) more.

    ``covariance=PaperCovariance()`` is the algorithm as printed; the default weights and targets are ours. Other arguments as
    in :func:`fit` and :class:`TrainedNetworks`. Cost: the partial SVD and K + T trainings; memory (K + T)·6·P numbers.

    Example:
        >>> import torch, ntkgp
        >>> net = ntkgp.mlp(1, width=32, generator=torch.Generator().manual_seed(0))
        >>> x = torch.linspace(-1, 1, 6).unsqueeze(1)
        >>> trained = train_posterior_covariance(net, x, 2, noise_var=0.1, covariance=ntkgp.PaperCovariance())
        >>> query_posterior_covariance(trained, torch.zeros(3, 1)).shape
        torch.Size([3, 3])
    """
    problem = pose(module, x, None, noise_var=noise_var, prior_var=prior_var, dtype=torch.float64)
    plan = plan_covariance(problem, rank, tail, svd or DenseSVD(), covariance or TightCovariance(), generator)
    roles = ["covariance"] * plan.targets.shape[1]
    predictors = train_predictors(problem, plan.targets, roles, plan.svd, trainer or AcceleratedGD(), progress)
    return TrainedCovariance(plan, predictors)


def query_posterior_covariance(trained: TrainedCovariance, x: Tensor) -> Float[Tensor, "MC MC"]:
    """Algorithm 2, Query-Posterior-Covariance: J(x′)J(x′)ᵀ − P W Pᵀ − P′P′ᵀ/T, as it comes.

    Nothing is clipped here: training and Monte-Carlo errors may make a variance negative. ``fit(...).predict`` clips to the
    certified bracket. Cost: K + T + 1 forward passes and the kernel of the M points.

    Example:
        >>> import torch, ntkgp
        >>> net = ntkgp.mlp(1, width=32, generator=torch.Generator().manual_seed(0))
        >>> trained = train_posterior_covariance(net, torch.linspace(-1, 1, 6).unsqueeze(1), 2, noise_var=0.1)
        >>> bool((query_posterior_covariance(trained, torch.full((1, 1), 9.0)) > 1).all())  # far away, unsure
        True
    """
    problem = trained.plan.problem
    x = problem.checked(x)
    parts = trained.plan.parts(trained.predictors(x).to(trained.plan.svd.s.dtype))
    return problem.answer(problem.tangent.at(x).kernel() - parts.explained())
