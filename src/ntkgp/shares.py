"""The copies of a network shared out over ranks: each trains its own on all points, and nothing is exchanged until they end.

Copies do not depend on each other, so this costs one gathering of S·P numbers in all, where sharing out the points would cost a
sum of S·P numbers at every step. A share that was begun stays one: whatever rank takes it over trains it as the batch it was.
"""

import time
from collections.abc import Callable
from itertools import pairwise

from jaxtyping import Float
from torch import Tensor

from ntkgp._bookmark import NOWHERE, Bookmark
from ntkgp.checkpoint import Progress
from ntkgp.distributed import Group
from ntkgp.linalg.svd import PartialSVD
from ntkgp.predictors import NetworkPredictors, copies_of, train_predictors
from ntkgp.problem import Problem
from ntkgp.training import Trainer, joined
from ntkgp.training_task import TrainedWeights


def shares_of(copies: int, group: Group | None) -> list[list[int]]:
    """Copies from where to where: one share a rank, about equal, none empty."""
    size = 1 if group is None else min(group.size, copies)
    edges = [copies * k // size for k in range(size + 1)]
    return [[start, stop] for start, stop in pairwise(edges)]


def train_shares(
    problem: Problem,
    targets: Float[Tensor, "NC S"],
    roles: list[str],
    head: PartialSVD,
    trainer: Trainer,
    shares: list[list[int]],
    kept: Progress,
    progress: bool = False,
) -> NetworkPredictors:
    """:func:`train_predictors`, the shares dealt out to the ranks in turn, the results on all of them."""
    group = kept.group
    mine = list(range(len(shares))) if group is None else list(range(group.rank, len(shares), group.size))
    alone, found = kept.alone(), dict[int, NetworkPredictors]()
    for k in mine:
        start, stop = shares[k]
        bookmark = NOWHERE if kept.folder is None else alone.bookmark(f"training-{start}-{stop}")
        bookmark = bookmark if group is None else _Alive(bookmark, group)
        show = progress and (group is None or group.first)
        part = (targets[:, start:stop], roles[start:stop])
        found[k] = train_predictors(problem, *part, head, trainer, show, bookmark=bookmark)
    if group is None:
        return NetworkPredictors(copies_of(problem, trainer.dtype), joined([part.trained for part in found.values()]))
    while group.any(False):  # others are still training
        pass
    return _collected(problem, group, found, shares, trainer)


def _collected(
    problem: Problem, group: Group, found: dict[int, NetworkPredictors], shares: list[list[int]], trainer: Trainer
) -> NetworkPredictors:
    """All ranks' copies, on all of them and in order."""
    parts = []
    for k in range(len(shares)):
        trained = found[k].trained if k in found else None
        like = problem.x.new_zeros(0, dtype=trainer.dtype)
        deltas = like.new_zeros(0, problem.tangent.space.size) if trained is None else trained.deltas
        owner = k % group.size
        said = group.facts(None if trained is None else [
            trained.steps, trained.converged, trained.accuracy, trained.losses, trained.seconds
        ])[owner]  # fmt: skip
        scale = group.gather(like if trained is None else trained.scale)[owner]
        parts.append(TrainedWeights(group.gather(deltas)[owner], scale, *said))
    return NetworkPredictors(copies_of(problem, trainer.dtype), joined(parts))


class _Alive(Bookmark):
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
