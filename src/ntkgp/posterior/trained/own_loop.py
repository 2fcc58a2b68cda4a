"""Pieces for a training loop of your own: shifted targets, the anchor penalty, and a posterior from the trained networks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ntkgp._system.check_module import prior_scales
from ntkgp._system.settings import in_own_settings
from ntkgp._system.types import MeanFunction
from ntkgp.linalg.svd.dense import DenseSVD
from ntkgp.linalg.svd.partial_svd import SVDMethod
from ntkgp.posterior.trained.covariance import CovarianceEstimate, TightCovariance
from ntkgp.posterior.trained.plan import CovariancePlan, plan_covariance
from ntkgp.posterior.trained.posterior import TrainedPosterior
from ntkgp.posterior.trained.training.networks import NetworkPredictors, copies_of
from ntkgp.posterior.trained.training.task import TrainedWeights
from ntkgp.problem.build import build_problem
from ntkgp.problem.source import Source


def anchor_penalty(network: nn.Module, anchor: nn.Module, prior_var: float | Mapping[str, float] = 1.0) -> Tensor:
    """‖θ − θ0‖² between a network in training and the module it started from; the paper's loss adds it times β.

    Differentiable in the parameters of `network`; the parameters of `anchor` are constants. Memory: one parameter tensor.

    Args:
        network: the copy in training.
        anchor: the module it was copied from.
        prior_var: prior variance of the displacement, as in :func:`fit`; each square is divided by it.

    Example:
        >>> import copy, torch
        >>> net = torch.nn.Linear(2, 1)
        >>> moved = copy.deepcopy(net)
        >>> with torch.no_grad(): _ = moved.bias.add_(3.0)
        >>> round(anchor_penalty(moved, net).item(), 4)
        9.0
    """
    start = dict(anchor.named_parameters())
    scales = prior_scales(prior_var, [name for name, p in network.named_parameters() if p.requires_grad])
    terms = []
    for name, p in network.named_parameters():
        if name not in start or start[name].shape != p.shape:
            raise ValueError(
                f"network is not a copy of anchor: parameter {name!r} of shape {tuple(p.shape)} is not in anchor; pass the "
                "module that was copied"
            )
        if name in scales:
            terms.append(((p - start[name].detach()) / scales[name]).square().sum())
    return torch.stack(terms).sum()


@dataclass(frozen=True)
class TrainingPlan:
    """The training targets of the 1 + K + T copies of a module, and a posterior from the trained copies.

    Attributes:
        targets: shifted targets t + f(x; θ0), (S, N) or (S, N, C) as y: first the mean, then the head, then the tail.
        weights: weight of each observation in the squared error, (N,) or (N, C); all 1 if the noise is one number.
        beta: the paper's β = σ²/N, the factor of :func:`anchor_penalty`.

    Example:
        >>> import torch, ntkgp
        >>> net = ntkgp.mlp(1, width=32, generator=torch.Generator().manual_seed(0))
        >>> x = torch.linspace(-1, 1, 6).unsqueeze(1)
        >>> plan = plan_training(net, x, x[:, 0].sin(), noise_var=0.1, rank=2, tail=1)
        >>> len(plan.targets), round(plan.beta, 4)  # 1 for the mean, 2 for the head, 1 for the tail
        (4, 0.0167)
    """

    targets: Tensor
    weights: Tensor
    beta: float
    covariance_plan: CovariancePlan

    def posterior(self, networks: Sequence[nn.Module]) -> TrainedPosterior:
        """Build the posterior from the trained copies, one per target, in the order of `targets`.

        Memory: S·P numbers for the displacements.
        """
        plan = self.covariance_plan
        network, scales = plan.problem.network, plan.problem.operators.tangent.scales
        if len(networks) != len(self.targets):
            raise ValueError(f"expected {len(self.targets)} trained networks, one per target, got {len(networks)}")
        trained = [dict(network.named_parameters()) for network in networks]
        for k, params in enumerate(trained):
            wrong = [name for name, p in network.anchor.items() if name not in params or params[name].shape != p.shape]
            if wrong:
                raise ValueError(
                    f"network {k} is not a copy of the module: parameter {wrong[0]!r} is missing or has another shape"
                )
        copies = copies_of(plan.problem, network.dtype)
        deltas = copies.layout.join({
            name: torch.stack([params[name].detach().to(p) - p for params in trained]) / scales[name]
            for name, p in network.anchor.items()
        })  # fmt: skip
        S = len(networks)
        weights = TrainedWeights(deltas, deltas.new_ones(S), [0] * S, [True] * S, [math.nan] * S, losses=[], seconds=0.0)
        return TrainedPosterior(plan.problem, plan, NetworkPredictors(copies, weights), plan.bracket())


@in_own_settings(gradients=True)
def plan_training(
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    noise_var: float | Tensor,
    rank: int = 5,
    tail: int = 0,
    svd: SVDMethod | None = None,
    covariance: CovarianceEstimate | None = None,
    prior_mean: MeanFunction | None = None,
    prior_var: float | Mapping[str, float] = 1.0,
    generator: torch.Generator | None = None,
) -> TrainingPlan:
    """Compute the targets for a training loop of your own: train a copy of the module on each, then call ``plan.posterior``.

    Each copy minimises ``(weights * (copy(x).view_as(target) − target)²).sum() / N + beta * anchor_penalty(copy, module)``,
    with the same `prior_var` in the penalty as here. Other arguments as in :func:`fit` and :class:`TrainedNetworks`. Cost: the
    partial SVD; memory that of `svd`.

    Example:
        >>> import copy, torch, ntkgp
        >>> net = ntkgp.mlp(1, width=32, generator=torch.Generator().manual_seed(0))
        >>> x = torch.linspace(-1, 1, 6).unsqueeze(1)
        >>> plan = plan_training(net, x, x[:, 0].sin(), noise_var=0.1, rank=2)
        >>> plan.targets.shape
        torch.Size([3, 6])
        >>> posterior = plan.posterior([copy.deepcopy(net) for target in plan.targets])  # not trained yet: nothing learned
        >>> bool(posterior.predict(x).mean.abs().max() < 1e-9)
        True
    """
    source = Source.of(module, x, y, noise_var)
    problem = build_problem(module, source, prior_mean=prior_mean, prior_var=prior_var, dtype=torch.float64)
    plan = plan_covariance(problem, rank, tail, svd or DenseSVD(), covariance or TightCovariance(), generator)
    columns = torch.cat([problem.data.residual.unsqueeze(1), plan.targets], dim=1)
    shifted = columns + problem.network.initial(x).reshape(-1, 1)
    return TrainingPlan(
        targets=torch.stack([problem.answers.shaped(column) for column in shifted.T]),
        weights=problem.answers.shaped(problem.data.loss_weights.flatten()),
        beta=problem.data.beta,
        covariance_plan=plan,
    )
