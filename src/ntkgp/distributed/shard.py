"""Which of all points one rank holds."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ntkgp.distributed.group import Group


@dataclass(frozen=True)
class Shard:
    """Which of all points this rank holds: they stand in the order of the ranks."""

    group: Group
    points: int  # of all ranks
    start: int  # where this rank's begin
    few: Tensor = field(repr=False)  # some points, the same on all ranks

    @classmethod
    def of(cls, group: Group, count: int, few: Tensor) -> "Shard":
        """The place of this rank, given how many points it has."""
        counts = group.facts(count)
        return cls(group, sum(counts), sum(counts[: group.rank]), few)

    def pick(self, pool: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
        """At most `count` rows of the ranks' pools, drawn from all and in the order drawn, on all ranks."""
        sizes = self.group.facts(len(pool))
        start = sum(sizes[: self.group.rank])
        device = "cpu" if generator is None else generator.device
        picks = torch.randperm(sum(sizes), generator=generator, device=device)[:count].cpu()
        here = (picks >= start) & (picks < start + len(pool))
        found = torch.cat(self.group.gather(pool[(picks[here] - start).to(pool.device)]))
        # The ranks' picks stand one behind the other; back to the order of the draw.
        rank_of = torch.bucketize(picks, torch.tensor(sizes).cumsum(0), right=True)
        return found[torch.argsort(torch.argsort(rank_of, stable=True)).to(found.device)]
