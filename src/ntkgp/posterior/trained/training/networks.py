"""Trained copies of the network as predictors, and the job of training them."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.memory import by_halves, rows_per_chunk
from ntkgp._system.resume import NOWHERE, Bookmark
from ntkgp.linalg.svd.partial_svd import PartialSVD
from ntkgp.posterior.trained.predictors import Predictors
from ntkgp.posterior.trained.training.task import Copies, Metric, TrainedWeights, TrainingTask
from ntkgp.posterior.trained.training.trainer import Trainer
from ntkgp.problem.problem import Problem
from ntkgp.storage.state import State


@dataclass(frozen=True)
class NetworkPredictors(Predictors):
    """Trained copies of the network: (f(x; θ_s) − f(x; θ0)) / ε. Cost: S forward passes."""

    copies: Copies
    trained: TrainedWeights

    def __call__(self, x: Tensor) -> Float[Tensor, "MC S"]:
        """Return M t at the points x, one column per target."""
        network, deltas = self.copies.network, self.trained.deltas
        widest = max(p.numel() ** 0.5 for p in network.anchor.values())
        rows = rows_per_chunk(8 * len(deltas) * widest)
        parts: list[Tensor] = []
        for part in network.cast(x).split(rows):
            parts += by_halves(lambda some, part=part: self.copies.change(deltas, part[some]), len(part))
        return torch.cat([change.flatten(1) for change in parts], dim=1).T / self.trained.scale

    def __getitem__(self, which: slice) -> "NetworkPredictors":
        """Select predictors by a slice."""
        trained = self.trained
        return NetworkPredictors(
            self.copies,
            TrainedWeights(
                trained.deltas[which], trained.scale[which], trained.steps[which], trained.converged[which],
                trained.accuracy[which], [losses[which] for losses in trained.losses], trained.seconds,
            ),
        )  # fmt: skip


@dataclass(frozen=True)
class TrainingJob:
    """Algorithm 1 on every column of `targets` (in units of y), all copies as one stacked batch."""

    problem: Problem
    targets: Float[Tensor, "NC S"]
    roles: list[str]  # "mean" or "covariance", one per target
    head: PartialSVD  # of the whitened Jacobian, of any rank; the trainer takes its step and metric from it
    trainer: Trainer
    start: Float[Tensor, "S P"] | None = None  # displacements to start from, for unscaled targets

    def copies(self) -> Copies:
        """Return the copies of the network, in the dtype of the trainer."""
        return copies_of(self.problem, self.trainer.dtype)

    def task(self) -> TrainingTask:
        """Build the task for the trainer."""
        copies, data, dtype = self.copies(), self.problem.data, self.trainer.dtype
        return TrainingTask(
            copies=copies,
            x=copies.network.cast(data.x),
            targets=self.targets.T.unflatten(1, (-1, data.outputs)).to(dtype),
            weights=data.loss_weights.to(dtype),
            beta=data.beta,
            amplitude=math.sqrt(float(self.problem.operators.jacobian.diag().mean())) or 1.0,  # 0 for a dead network
            metric=Metric(self.head.v.to(dtype), self.head.s.to(dtype), self.head.residuals.to(dtype)),
            roles=self.roles,
            start=None if self.start is None else self.start.to(dtype),
        )

    def part(self, start: int, stop: int) -> "TrainingJob":
        """Return the job for the targets from `start` to `stop`."""
        return replace(self, targets=self.targets[:, start:stop], roles=self.roles[start:stop])

    def train(self, progress: bool = False, bookmark: Bookmark = NOWHERE) -> NetworkPredictors:
        """Train all copies to the end."""
        task = self.task()
        # A user's own trainer need not accept a bookmark.
        extra = () if bookmark is NOWHERE else (bookmark,)
        return NetworkPredictors(task.copies, self.trainer.train(task, progress, *extra))


def copies_of(problem: Problem, dtype: torch.dtype) -> Copies:
    """Return the copies of the network, in the given dtype."""
    tangent = problem.operators.tangent
    return Copies(problem.network.to(dtype), tangent.layout, tangent.scales)


def predictors_state(predictors: NetworkPredictors) -> State:
    """Return all data of trained copies except the network; each copy as its displacement from the network."""
    trained, double = predictors.trained, {"dtype": torch.float64, "device": "cpu"}
    return State.of(
        deltas=trained.deltas, scale=trained.scale, steps=trained.steps, converged=trained.converged,
        accuracy=torch.tensor(trained.accuracy, **double),  # a tensor, because JSON has no NaN
        losses=torch.tensor(trained.losses, **double).reshape(-1, len(trained.scale)), seconds=trained.seconds,
    )  # fmt: skip


def restore_predictors(state: State, problem: Problem, copies: str) -> NetworkPredictors:
    """Rebuild the trained copies of the network; `copies` is the letter of their number in the shapes of the state."""
    deltas, double = state.tensor("deltas", f"{copies} P"), torch.float64
    trained = TrainedWeights(
        deltas=deltas,
        scale=state.tensor("scale", copies, deltas.dtype),
        steps=state.fact("steps", list),
        converged=state.fact("converged", list),
        accuracy=state.tensor("accuracy", copies, double, finite=False).tolist(),
        losses=state.tensor("losses", f"R {copies}", double, finite=False).tolist(),
        seconds=state.fact("seconds", float),
    )
    return NetworkPredictors(copies_of(problem, deltas.dtype), trained)
