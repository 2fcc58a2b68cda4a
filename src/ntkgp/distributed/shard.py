"""The points that one rank holds."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ntkgp.distributed.group import Group


@dataclass(frozen=True)
class Shard:
    """The position of this rank's points among all points, which are in the order of the ranks."""

    group: Group
    points: int  # number of points on all ranks
    start: int  # index of this rank's first point
    few: Tensor = field(repr=False)  # a few points, the same on all ranks

    @classmethod
    def of(cls, group: Group, count: int, few: Tensor) -> "Shard":
        """Exchange the counts of all ranks; `count` is the number of points on this rank."""
        counts = group.facts(count)
        return cls(group, sum(counts), sum(counts[: group.rank]), few)

    def pick(self, pool: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
        """Draw at most `count` rows from the pools of all ranks; return them on all ranks, in the order drawn."""
        sizes = self.group.facts(len(pool))
        start = sum(sizes[: self.group.rank])
        device = "cpu" if generator is None else generator.device
        picks = torch.randperm(sum(sizes), generator=generator, device=device)[:count].cpu()
        here = (picks >= start) & (picks < start + len(pool))
        found = torch.cat(self.group.gather(pool[(picks[here] - start).to(pool.device)]))
        # The picks are ordered by rank; restore the order of the draw.
        rank_of = torch.bucketize(picks, torch.tensor(sizes).cumsum(0), right=True)
        return found[torch.argsort(torch.argsort(rank_of, stable=True)).to(found.device)]
