"""Distribute the copies of a network over ranks: each rank trains its share on all points; results are gathered at the end.

Copies do not depend on each other, so this costs one gather of S·P numbers in total; distributing the points would cost a sum
of S·P numbers in every step. Shares never change during a fit: a rank that resumes a share trains the same batch of copies.
"""

import time
from collections.abc import Callable

from torch import Tensor

from ntkgp._system.resume import NOWHERE, Bookmark
from ntkgp.distributed.group import Group
from ntkgp.posterior.trained.training.networks import NetworkPredictors, TrainingJob
from ntkgp.posterior.trained.training.task import TrainedWeights
from ntkgp.posterior.trained.training.trainer import joined
from ntkgp.storage.stages import Stages


def train_on_ranks(job: TrainingJob, shares: list[list[int]], stages: Stages, progress: bool = False) -> NetworkPredictors:
    """Train all shares, assigned to the ranks in turn; every rank gets all results."""
    group = stages.group
    mine = list(range(len(shares))) if group is None else list(range(group.rank, len(shares), group.size))
    alone, found = stages.alone(), dict[int, NetworkPredictors]()
    for k in mine:
        start, stop = shares[k]
        bookmark = NOWHERE if stages.folder is None else alone.bookmark(f"training-{start}-{stop}")
        bookmark = bookmark if group is None else _Heartbeat(bookmark, group)
        found[k] = job.part(start, stop).train(progress, bookmark)
    if group is None:
        return NetworkPredictors(job.copies(), joined([part.trained for part in found.values()]))
    while group.any(False):  # wait: other ranks are still training
        pass
    return _collected(job, group, found, shares)


def _collected(
    job: TrainingJob, group: Group, found: dict[int, NetworkPredictors], shares: list[list[int]]
) -> NetworkPredictors:
    """Gather the trained copies of all ranks on every rank, in order."""
    parts, like = [], job.problem.data.x.new_zeros(0, dtype=job.trainer.dtype)
    for k in range(len(shares)):
        trained = found[k].trained if k in found else None
        deltas = like.new_zeros(0, job.problem.operators.parameters) if trained is None else trained.deltas
        owner = k % group.size
        report = group.facts(None if trained is None else [
            trained.steps, trained.converged, trained.accuracy, trained.losses, trained.seconds
        ])[owner]  # fmt: skip
        scale = group.gather(like if trained is None else trained.scale)[owner]
        parts.append(TrainedWeights(group.gather(deltas)[owner], scale, *report))
    return NetworkPredictors(job.copies(), joined(parts))


class _Heartbeat(Bookmark):
    """A bookmark that also tells waiting ranks at intervals that this rank is still training."""

    def __init__(self, inner: Bookmark, group: Group) -> None:
        self.inner, self.group, self.last = inner, group, time.monotonic()

    def load(self) -> dict[str, Tensor] | None:
        """Return the saved state, or None."""
        return self.inner.load()

    def save(self, state: Callable[[], dict[str, Tensor]]) -> None:
        """Save the state, and signal the other ranks after a third of their timeout."""
        self.inner.save(state)
        if time.monotonic() - self.last >= self.group.timeout / 3:
            self.group.any(True)
            self.last = time.monotonic()
