"""The interface of trainers: Algorithm 1 on the stacked copies of a :class:`TrainingTask`, by gradient descent."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.progress import progress_bar
from ntkgp._system.resume import NOWHERE, Bookmark
from ntkgp.posterior.trained.training.task import TrainedWeights, TrainingTask


@dataclass(frozen=True)
class TrainingStep:
    """The state of a training after one step."""

    count: int
    note: Mapping[str, str | int]  # shown by the progress bar next to the count
    weights: Callable[[], TrainedWeights]  # returns a copy of the current weights; call it before the next step


Steps = Generator[TrainingStep, None, TrainedWeights]  # yields after every step and returns the result


class Trainer(ABC):
    """An optimiser with its options that minimises the loss of every copy."""

    dtype: torch.dtype

    @abstractmethod
    def steps(self, task: TrainingTask, bookmark: Bookmark = NOWHERE) -> Steps:
        """Train all copies together and yield after every step; the caller may pause or stop between steps."""

    @abstractmethod
    def train(self, task: TrainingTask, progress: bool = False, bookmark: Bookmark = NOWHERE) -> TrainedWeights:
        """Train all copies together to the end; resume from the bookmark if it has a saved state."""


def run_to_end(steps: Steps, copies: int, most: int, progress: bool) -> TrainedWeights:
    """Run all steps of a training with a progress bar."""
    with progress_bar(progress, total=most, desc=f"training {copies} networks", leave=False, mininterval=0.5) as bar:
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                return end.value
            bar.update(step.count - bar.n)
            bar.set_postfix(dict(step.note), refresh=False)


@dataclass
class LossRecord:
    """Losses of all copies at every 10th step; a copy that has stopped repeats its last loss."""

    copies: int
    losses: list[list[float]] = field(default_factory=list)

    def add(self, count: int, active: Tensor, loss: Tensor) -> None:
        """Record the losses of the active copies at every 10th step."""
        if count % 10 == 1:
            row = list(self.losses[-1]) if self.losses else [math.nan] * self.copies
            for k, value in zip(active.tolist(), loss.tolist(), strict=True):
                row[k] = value
            self.losses.append(row)

    def tensor(self) -> Float[Tensor, "L S"]:
        """Return the losses as a tensor for a bookmark."""
        return torch.tensor(self.losses, dtype=torch.float64).reshape(-1, self.copies)


def joined(parts: list[TrainedWeights]) -> TrainedWeights:
    """Join copies that were trained separately; a part that stopped earlier repeats its last losses."""
    rows = max(len(part.losses) for part in parts)
    losses = [part.losses + [part.losses[-1]] * (rows - len(part.losses)) if part.losses else [] for part in parts]
    return TrainedWeights(
        deltas=torch.cat([part.deltas for part in parts]),
        scale=torch.cat([part.scale for part in parts]),
        steps=[n for part in parts for n in part.steps],
        converged=[c for part in parts for c in part.converged],
        accuracy=[a for part in parts for a in part.accuracy],
        losses=[[value for each in losses if each for value in each[k]] for k in range(rows)],
        seconds=max(part.seconds for part in parts),
    )
