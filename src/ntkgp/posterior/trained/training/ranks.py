"""The copies of a network shared out over ranks: each trains its own on all points, and nothing is exchanged until they end.

Copies do not depend on each other, so this costs one gathering of S·P numbers in all, where sharing out the points would cost a
sum of S·P numbers at every step. A share that was begun stays one: whatever rank takes it over trains it as the batch it was.
"""

import time
from collections.abc import Callable
from itertools import pairwise

from torch import Tensor

from ntkgp._system.resume import NOWHERE, Bookmark
from ntkgp.distributed.group import Group
from ntkgp.posterior.trained.training.networks import NetworkPredictors, TrainingJob
from ntkgp.posterior.trained.training.task import TrainedWeights
from ntkgp.posterior.trained.training.trainer import joined
from ntkgp.storage.stages import Stages


def shares_of(copies: int, group: Group | None) -> list[list[int]]:
    """Copies from where to where: one share a rank, about equal, none empty."""
    size = 1 if group is None else min(group.size, copies)
    edges = [copies * k // size for k in range(size + 1)]
    return [[start, stop] for start, stop in pairwise(edges)]


def train_on_ranks(job: TrainingJob, shares: list[list[int]], stages: Stages, progress: bool = False) -> NetworkPredictors:
    """Train the shares, dealt out to the ranks in turn; the results are on all ranks."""
    group = stages.group
    mine = list(range(len(shares))) if group is None else list(range(group.rank, len(shares), group.size))
    alone, found = stages.alone(), dict[int, NetworkPredictors]()
    for k in mine:
        start, stop = shares[k]
        bookmark = NOWHERE if stages.folder is None else alone.bookmark(f"training-{start}-{stop}")
        bookmark = bookmark if group is None else _SignOfLife(bookmark, group)
        found[k] = job.part(start, stop).train(progress, bookmark)
    if group is None:
        return NetworkPredictors(job.copies(), joined([part.trained for part in found.values()]))
    while group.any(False):  # others are still training
        pass
    return _collected(job, group, found, shares)


def _collected(
    job: TrainingJob, group: Group, found: dict[int, NetworkPredictors], shares: list[list[int]]
) -> NetworkPredictors:
    """The copies of all ranks, on each of them and in order."""
    parts, like = [], job.problem.data.x.new_zeros(0, dtype=job.trainer.dtype)
    for k in range(len(shares)):
        trained = found[k].trained if k in found else None
        deltas = like.new_zeros(0, job.problem.operators.parameters) if trained is None else trained.deltas
        owner = k % group.size
        said = group.facts(None if trained is None else [
            trained.steps, trained.converged, trained.accuracy, trained.losses, trained.seconds
        ])[owner]  # fmt: skip
        scale = group.gather(like if trained is None else trained.scale)[owner]
        parts.append(TrainedWeights(group.gather(deltas)[owner], scale, *said))
    return NetworkPredictors(job.copies(), joined(parts))


class _SignOfLife(Bookmark):
    """A bookmark that also tells waiting ranks, now and then, that this one is still at work."""

    def __init__(self, inner: Bookmark, group: Group) -> None:
        self.inner, self.group, self.last = inner, group, time.monotonic()

    def load(self) -> dict[str, Tensor] | None:
        """What was left."""
        return self.inner.load()

    def save(self, state: Callable[[], dict[str, Tensor]]) -> None:
        """Keep the state, and say so: all ranks meet at a third of the time after which they would give each other up."""
        self.inner.save(state)
        if time.monotonic() - self.last >= self.group.timeout / 3:
            self.group.any(True)
            self.last = time.monotonic()
