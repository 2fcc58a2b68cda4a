"""Algorithm 1 on many targets at once: how the stacked copies of a :class:`TrainingTask` are trained by gradient descent."""

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
    """Where training stands after a step."""

    count: int
    note: Mapping[str, str | int]  # what a progress bar shows beside the count
    weights: Callable[[], TrainedWeights]  # a copy of the weights as they are now; to be called before the next step


Steps = Generator[TrainingStep, None, TrainedWeights]  # a training that goes on when asked to, and ends with its result


class Trainer(ABC):
    """A way to minimise the loss of every copy; an object that carries its own options."""

    dtype: torch.dtype

    @abstractmethod
    def steps(self, task: TrainingTask, bookmark: Bookmark = NOWHERE) -> Steps:
        """Train all copies together, a step each time the generator is asked: stop, look and go on as you like."""

    @abstractmethod
    def train(self, task: TrainingTask, progress: bool = False, bookmark: Bookmark = NOWHERE) -> TrainedWeights:
        """Train all copies together, from where the bookmark says, to the end."""


def run_to_end(steps: Steps, copies: int, most: int, progress: bool) -> TrainedWeights:
    """All steps of a training, under a progress bar."""
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
    """Losses of all copies at every 10th step; copies that have left keep their last one."""

    copies: int
    losses: list[list[float]] = field(default_factory=list)

    def add(self, count: int, active: Tensor, loss: Tensor) -> None:
        if count % 10 == 1:
            row = list(self.losses[-1]) if self.losses else [math.nan] * self.copies
            for k, value in zip(active.tolist(), loss.tolist(), strict=True):
                row[k] = value
            self.losses.append(row)

    def tensor(self) -> Float[Tensor, "L S"]:
        """For a bookmark."""
        return torch.tensor(self.losses, dtype=torch.float64).reshape(-1, self.copies)


def joined(parts: list[TrainedWeights]) -> TrainedWeights:
    """Copies that were trained apart, as if together; those that stopped earlier keep their last loss."""
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
