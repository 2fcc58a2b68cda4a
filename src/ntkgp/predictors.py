"""Predictors: what Algorithm 1 returns for a target t, the function M t = J′Jᵀ(K + σ²I)⁻¹ t, for many t at once."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._bookmark import NOWHERE, Bookmark
from ntkgp.linalg.svd import PartialSVD
from ntkgp.problem import Problem
from ntkgp.tangent.memory import by_halves, rows_per_chunk
from ntkgp.tangent.tangent import Tangent
from ntkgp.training import Trainer
from ntkgp.training_task import Copies, Metric, TrainedWeights, TrainingTask


class Predictors(ABC):
    """S fitted functions of x."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Float[Tensor, "MC S"]:
        """M t at the points x, a column per target."""

    @abstractmethod
    def __getitem__(self, which: slice) -> "Predictors":
        """Some of them."""


@dataclass(frozen=True)
class LinearPredictors(Predictors):
    """Predictors of the linearised network: J(x) w. Cost: 2·M·C·P·S operations."""

    tangent: Tangent
    weights: Float[Tensor, "P S"]

    def __call__(self, x: Tensor) -> Float[Tensor, "MC S"]:
        """M t at the points x, a column per target."""
        return torch.cat([self.tangent.at(part).matmat(self.weights) for part in x.split(8192)])

    def __getitem__(self, which: slice) -> "LinearPredictors":
        """Some of them."""
        return LinearPredictors(self.tangent, self.weights[:, which])


@dataclass(frozen=True)
class NetworkPredictors(Predictors):
    """Trained copies of the network: (f(x; θ_s) − f(x; θ0)) / ε. Cost: S forward passes."""

    copies: Copies
    trained: TrainedWeights

    def __call__(self, x: Tensor) -> Float[Tensor, "MC S"]:
        """M t at the points x, a column per target."""
        network, deltas = self.copies.network, self.trained.deltas
        widest = max(p.numel() ** 0.5 for p in network.anchor.values())
        rows = rows_per_chunk(8 * len(deltas) * widest)
        parts: list[Tensor] = []
        for part in network.cast(x).split(rows):
            parts += by_halves(lambda some, part=part: self.copies.change(deltas, part[some]), len(part))
        return torch.cat([change.flatten(1) for change in parts], dim=1).T / self.trained.scale

    def __getitem__(self, which: slice) -> "NetworkPredictors":
        """Some of them."""
        trained = self.trained
        return NetworkPredictors(
            self.copies,
            TrainedWeights(
                trained.deltas[which], trained.scale[which], trained.steps[which], trained.converged[which],
                trained.accuracy[which], [losses[which] for losses in trained.losses], trained.seconds,
            ),
        )  # fmt: skip


def copies_of(problem: Problem, dtype: torch.dtype) -> Copies:
    """How displacements become networks, in the dtype of a trainer."""
    return Copies(problem.network.to(dtype), problem.tangent.space, problem.tangent.scales)


def train_predictors(
    problem: Problem,
    targets: Float[Tensor, "NC S"],
    roles: list[str],
    head: PartialSVD,
    trainer: Trainer,
    progress: bool = False,
    start: Float[Tensor, "S P"] | None = None,
    bookmark: Bookmark = NOWHERE,
) -> NetworkPredictors:
    """Algorithm 1 on every column of `targets` (in units of y), all copies as one stacked batch.

    `head` is a partial SVD of the whitened Jacobian, of any rank: it gives the trainer its step and metric. `start` are
    displacements to start from, for the targets as they are.
    """
    task = training_task(problem, targets, roles, head, trainer.dtype, start)
    # Trainers of somebody else's need not know of bookmarks.
    trained = trainer.train(task, progress) if bookmark is NOWHERE else trainer.train(task, progress, bookmark)
    return NetworkPredictors(task.copies, trained)


def training_task(
    problem: Problem,
    targets: Float[Tensor, "NC S"],
    roles: list[str],
    head: PartialSVD,
    dtype: torch.dtype,
    start: Float[Tensor, "S P"] | None = None,
) -> TrainingTask:
    """What `train_predictors` trains, for a trainer of this dtype."""
    copies = copies_of(problem, dtype)
    return TrainingTask(
        copies=copies,
        x=copies.network.cast(problem.x),
        targets=targets.T.unflatten(1, (-1, problem.outputs)).to(dtype),
        weights=problem.loss_weights.to(dtype),
        beta=problem.beta,
        amplitude=math.sqrt(float(problem.jacobian.diag().mean())) or 1.0,  # 0 where the network is dead at all points
        metric=Metric(head.v.to(dtype), head.s.to(dtype), head.residuals.to(dtype)),
        roles=roles,
        start=None if start is None else start.to(dtype),
    )


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
