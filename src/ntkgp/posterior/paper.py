"""The paper's procedures under the paper's names.

For readers who compare the code with the paper. The paper's argument θ0 is the weights of the module.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp._system.check_options import check_rank
from ntkgp._system.settings import in_own_settings
from ntkgp._system.types import MeanFunction
from ntkgp.linalg.svd.dense import DenseSVD
from ntkgp.linalg.svd.lanczos import Lanczos
from ntkgp.linalg.svd.partial_svd import PartialSVD, SVDMethod
from ntkgp.posterior.trained.covariance import CovarianceEstimate, TightCovariance
from ntkgp.posterior.trained.plan import CovariancePlan, plan_covariance
from ntkgp.posterior.trained.predictors import Predictors
from ntkgp.posterior.trained.training.accelerated import AcceleratedGD
from ntkgp.posterior.trained.training.networks import TrainingJob
from ntkgp.posterior.trained.training.trainer import Trainer
from ntkgp.problem.build import build_problem
from ntkgp.problem.problem import Problem
from ntkgp.problem.source import Source


@dataclass(frozen=True)
class TrainedMean:
    """θ* of Algorithm 1, and the problem that :func:`query_posterior_mean` needs."""

    problem: Problem
    predictors: Predictors


@in_own_settings(gradients=True)
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
    source = Source.of(module, x, y, noise_var)
    problem = build_problem(module, source, prior_mean=prior_mean, prior_var=prior_var, dtype=trainer.dtype)
    # The trainer takes its step and metric from the first singular vectors; three digits are enough.
    head = Lanczos(tol=1e-3)(problem.operators.whitened, min(10, *problem.operators.shape), generator)
    job = TrainingJob(problem, problem.data.residual.unsqueeze(1), ["mean"], head, trainer)
    return TrainedMean(problem, job.train(progress))


@in_own_settings()
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
    answers = trained.problem.answers
    x = answers.checked(x)
    return answers.shaped(answers.mean_at(x) + trained.predictors(x).squeeze(1))


@in_own_settings(gradients=True)
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

    Cost and memory depend on the SVD method; the default :class:`DenseSVD` stores the N·C × N·C kernel.

    Example:
        >>> import torch, ntkgp
        >>> net = ntkgp.mlp(1, width=32, generator=torch.Generator().manual_seed(0))
        >>> svd = partial_svd(net, torch.linspace(-1, 1, 6).unsqueeze(1), 3)
        >>> svd.u.shape, svd.s.shape
        (torch.Size([6, 3]), torch.Size([3]))
    """
    operators = build_problem(module, Source(x, None), prior_var=prior_var, dtype=torch.float64).operators
    check_rank(rank, *operators.shape)
    return (DenseSVD() if svd is None else svd)(operators.whitened, rank, generator)


@dataclass(frozen=True)
class TrainedCovariance:
    """Σ and the trained weights of Algorithm 2, for :func:`query_posterior_covariance`."""

    plan: CovariancePlan
    predictors: Predictors


@in_own_settings(gradients=True)
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

    ``covariance=PaperCovariance()`` is the algorithm as printed; by default, weights and targets are those of
    :class:`TightCovariance`. Other arguments as
    in :func:`fit` and :class:`TrainedNetworks`. Cost: the partial SVD and K + T trainings; memory (K + T)·6·P numbers.

    Example:
        >>> import torch, ntkgp
        >>> net = ntkgp.mlp(1, width=32, generator=torch.Generator().manual_seed(0))
        >>> x = torch.linspace(-1, 1, 6).unsqueeze(1)
        >>> trained = train_posterior_covariance(net, x, 2, noise_var=0.1, covariance=ntkgp.posterior.PaperCovariance())
        >>> query_posterior_covariance(trained, torch.zeros(3, 1)).shape
        torch.Size([3, 3])
    """
    problem = build_problem(module, Source(x, None, noise_var), prior_var=prior_var, dtype=torch.float64)
    plan = plan_covariance(problem, rank, tail, svd or DenseSVD(), covariance or TightCovariance(), generator)
    roles = ["covariance"] * plan.targets.shape[1]
    job = TrainingJob(problem, plan.targets, roles, plan.svd, trainer or AcceleratedGD())
    return TrainedCovariance(plan, job.train(progress))


@in_own_settings()
def query_posterior_covariance(trained: TrainedCovariance, x: Tensor) -> Float[Tensor, "MC MC"]:
    """Algorithm 2, Query-Posterior-Covariance: J(x′)J(x′)ᵀ − P W Pᵀ − P′P′ᵀ/T, not clipped.

    Training and Monte-Carlo errors may make a variance negative. ``fit(...).predict`` clips it to the certified bracket. Cost:
    K + T + 1 forward passes and the kernel of the M points.

    Example:
        >>> import torch, ntkgp
        >>> net = ntkgp.mlp(1, width=32, generator=torch.Generator().manual_seed(0))
        >>> trained = train_posterior_covariance(net, torch.linspace(-1, 1, 6).unsqueeze(1), 2, noise_var=0.1)
        >>> bool((query_posterior_covariance(trained, torch.full((1, 1), 9.0)) > 1).all())  # uncertain far from the data
        True
    """
    problem = trained.plan.problem
    x = problem.answers.checked(x)
    parts = trained.plan.parts(trained.predictors(x).to(trained.plan.svd.s.dtype))
    return problem.answers.cast(problem.operators.at(x).gram() - parts.explained())
