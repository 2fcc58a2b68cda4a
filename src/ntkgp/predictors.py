"""Predictors: what Algorithm 1 returns for a target t, the function M t = J′Jᵀ(K + σ²I)⁻¹ t, for many t at once."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp.linalg.svd import PartialSVD
from ntkgp.problem import Problem
from ntkgp.tangent.functional import PureNetwork
from ntkgp.tangent.jacobian import rows_per_chunk
from ntkgp.tangent.tangent import Tangent
from ntkgp.training import TrainedWeights, Trainer, TrainingTask, change_of_output


class Predictors(ABC):
    """S fitted functions of x."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Float[Tensor, "MC S"]:
        """M t at the points x, a column per target."""


@dataclass(frozen=True)
class LinearPredictors(Predictors):
    """Predictors of the linearised network: J(x) w. Cost: 2·M·C·P·S operations."""

    tangent: Tangent
    weights: Float[Tensor, "P S"]

    def __call__(self, x: Tensor) -> Float[Tensor, "MC S"]:
        """M t at the points x, a column per target."""
        return torch.cat([self.tangent.at(part).matmat(self.weights) for part in x.split(8192)])


@dataclass(frozen=True)
class NetworkPredictors(Predictors):
    """Trained copies of the network: (f(x; θ_s) − f(x; θ0)) / ε. Cost: S forward passes."""

    network: PureNetwork
    scales: dict[str, float]
    trained: TrainedWeights

    def __call__(self, x: Tensor) -> Float[Tensor, "MC S"]:
        """M t at the points x, a column per target."""
        rows = rows_per_chunk(8 * len(self.trained.steps) * max(p.numel() ** 0.5 for p in self.network.anchor.values()))
        parts = [change_of_output(self.network, self.scales, self.trained.deltas, part).flatten(1)
                 for part in self.network.cast(x).split(rows)]  # fmt: skip
        return torch.cat(parts, dim=1).T / self.trained.signal


def train_predictors(
    problem: Problem,
    targets: Float[Tensor, "NC S"],
    roles: list[str],
    top: PartialSVD,
    trainer: Trainer,
    progress: bool = False,
) -> NetworkPredictors:
    """Algorithm 1 on every column of `targets` (in units of y), all copies as one stacked batch.

    `top` holds at least the largest singular value of the whitened Jacobian, which sets the step size.
    """
    network = problem.network.to(trainer.dtype)
    # A Ritz value is a lower bound; its residual says how far the largest singular value can be above it.
    largest = float(top.s[0] + top.residuals[0]) ** 2
    task = TrainingTask(
        network=network,
        scales=problem.tangent.scales,
        x=network.cast(problem.x),
        targets=targets.T.unflatten(1, (-1, problem.outputs)).to(trainer.dtype),
        weights=problem.loss_weights.to(trainer.dtype),
        beta=problem.beta,
        curvature=problem.beta * largest,
        roles=roles,
    )
    return NetworkPredictors(network, problem.tangent.scales, trainer.train(task, progress))


def head_predictors(problem: Problem, svd: PartialSVD) -> LinearPredictors:
    """The predictors of the singular vectors, which need no training: θ*_i − θ0 = V_i s_i/(s_i² + 1), whitened."""
    return LinearPredictors(problem.tangent, svd.v * (svd.s / (svd.s.square() + 1)))


def analytic_predictors(problem: Problem, targets: Float[Tensor, "NC S"]) -> LinearPredictors:
    """M t by a dense solve, for any (whitened) targets. Memory: (N·C)² numbers; for small problems and as a reference."""
    operator = problem.whitened
    assert operator.gram is not None
    matrix = operator.gram()
    matrix.diagonal().add_(1.0)
    return LinearPredictors(problem.tangent, operator.rmatmat(torch.linalg.solve(matrix, targets)))
