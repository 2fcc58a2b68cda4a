"""Data over several processes: J(x) whose rows, and if need be whose columns, lie on different ranks.

Rows of J live where their points live. A product J v is each rank's own; Jᵀu is a sum over the ranks. That sum and the inner
products of vectors that are split are the only things exchanged, so the algorithms do not know of any of it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._types import GroupError
from ntkgp.batches import Batches
from ntkgp.distributed import Group
from ntkgp.linalg.space import Space, Whole, normal_rows
from ntkgp.tangent.jacobian import Jacobian, working_bytes

FEW = 4  # points that all ranks look at


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


@dataclass(frozen=True)
class Split(Space):
    """Vectors of which each rank holds some rows: inner products are sums over the ranks."""

    group: Group
    length: int

    spread = True

    @property
    def rows(self) -> slice:
        """The rows that are here."""
        each = -(-self.length // self.group.size)
        return slice(min(each * self.group.rank, self.length), min(each * (self.group.rank + 1), self.length))

    def gram(self, a: Tensor, b: Tensor) -> Tensor:
        """aᵀ b."""
        return self.group.sum(a.T @ b)

    def dots(self, a: Tensor, b: Tensor) -> Tensor:
        """The inner product of each column of a with that of b."""
        return self.group.sum((a * b).sum(dim=0))

    def orthonormal(self, block: Tensor) -> Tensor:
        """An orthonormal basis of the span: QR of each rank's rows, then QR of the small factors, as stable as one QR."""
        q, r = torch.linalg.qr(block)
        small = self.group.gather(r)
        top = torch.linalg.qr(torch.cat(small)).Q.split([len(part) for part in small])
        return q @ top[self.group.rank]

    def normal(
        self, columns: int, generator: torch.Generator | None, dtype: torch.dtype, device: torch.device, length: int
    ) -> Tensor:
        """Columns of standard normal numbers, of which the rows that are here."""
        return normal_rows(length, self.rows, columns, generator, dtype, device)

    def agreed(self, decision: bool) -> bool:
        """The same decision on all ranks."""
        return self.group.any(decision)

    def blocks(self, v: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Some columns at a time, whole. Traffic: P numbers a column; memory four working sets, or four columns."""
        columns = max(1, working_bytes(v.device) // max(1, self.length * v.element_size()))
        for start in range(0, v.shape[1], columns):
            these = slice(start, min(start + columns, v.shape[1]))
            yield these, torch.cat(self.group.gather(v[:, these].contiguous()))

    def whole(self, v: Tensor) -> Tensor:
        """All rows of all columns, on all ranks."""
        return torch.cat(self.group.gather(v.contiguous()))


class ShardedJacobian:
    """J(x) of all ranks' points. `matmat` gives the rows of this rank, `rmatmat` takes them and sums over the ranks.

    Args:
        local: the rows of this rank; None where it has no points.
        shard: this rank's place.
        outputs: C.
        parameters: P.
        space: of vectors over the parameters.
    """

    def __init__(self, local: Jacobian | None, shard: Shard, outputs: int, parameters: int, space: Space):
        self._local, self._group, self._space = local, shard.group, space
        self._few, self.outputs, self.points = shard.few, outputs, shard.points
        self.shape = (shard.points * outputs, parameters)

    def matmat(self, v: Float[Tensor, "p S"]) -> Float[Tensor, "nC S"]:
        """J v, the rows of this rank."""
        if isinstance(self._space, Split):
            parts = [self._product(block) for _, block in self._space.blocks(v)]
            return torch.cat(parts, dim=1) if parts else self._product(v.new_zeros(self.shape[1], 0))
        return self._product(v)

    def rmatmat(self, u: Float[Tensor, "nC S"]) -> Float[Tensor, "p S"]:
        """Jᵀ u, u over all ranks. Traffic: P·S numbers."""
        return self._summed(lambda: self._zeros(u) if self._local is None else self._local.rmatmat(u))

    def normal(self, v: Float[Tensor, "p S"], weights: Float[Tensor, "nC"]) -> Float[Tensor, "p S"]:
        """Jᵀ diag(weights) J v. Traffic: P·S numbers, and as many again to gather v where it is split."""
        if not isinstance(self._space, Split):
            return self._summed(lambda: self._zeros(v) if self._local is None else self._local.normal(v, weights))
        out = torch.empty_like(v)
        for these, block in self._space.blocks(v):
            out[:, these] = self._summed(
                lambda block=block: self._zeros(block) if self._local is None else self._local.normal(block, weights)
            )
        return out

    def gram(self, weights: Float[Tensor, "nC"], done: Callable[[int], object] | None = None) -> Float[Tensor, "P P"]:
        """Jᵀ diag(weights) J written out. Traffic: P² numbers, once."""
        if self._local is None:
            return self._group.sum(weights.new_zeros(self.shape[1], self.shape[1]))
        return self._group.sum(self._local.gram(weights, done))

    def diag(self) -> Float[Tensor, "nC"]:
        """The diagonal of J Jᵀ, the part of this rank."""
        return self._few.new_zeros(0, dtype=torch.float64) if self._local is None else self._local.diag()

    def kernel(self, other: object = None) -> Tensor:
        """Not where rows lie on different ranks."""
        raise GroupError("the kernel of points on different ranks is not written out; use LowRank, or fit without a group")

    def _product(self, v: Tensor) -> Tensor:
        return v.new_zeros(0, v.shape[1]) if self._local is None else self._local.matmat(v)

    def _summed(self, product: Callable[[], Tensor]) -> Tensor:
        whole = self._group.sum(product())
        return whole[self._space.rows].clone() if isinstance(self._space, Split) else whole

    def _zeros(self, like: Tensor) -> Tensor:
        # As products come: the transpose of what they were computed in.
        return like.new_zeros(like.shape[1], self.shape[1]).T


def replicated(group: Group) -> Space:
    """Vectors of which every rank has a copy."""
    return Whole(group.any)


def opening(group: Group, x: Tensor | Batches, y: Tensor | None) -> tuple[Tensor, Tensor]:
    """A few points, the same on all ranks, and the kind of target: (0,) or (0, C).

    A rank may have none: then its tensors have length 0, or its batches are none. What there is must be of one kind.
    """
    if isinstance(x, Batches):
        first, target = next(iter(x), (None, None))
    else:
        first, target = (x, y) if len(x) else (None, None)
    mine = None
    if first is not None and target is not None:
        mine = [list(first.shape[1:]), str(first.dtype), list(target.shape[1:]), str(target.dtype)]
    known = group.facts(mine)
    kinds = [(rank, kind) for rank, kind in enumerate(known) if kind is not None]
    if not kinds:
        raise GroupError("no rank has any points; expected at least one somewhere")
    donor, (shape, dtype, target_shape, target_dtype) = kinds[0]
    for rank, kind in kinds:
        if kind != known[donor]:
            raise GroupError(
                "x and y must be of one kind on all ranks (shapes less the first axis, and dtypes), got "
                f"{known[donor]} on rank {donor} and {kind} on rank {rank}"
            )
    device = x.device
    few = torch.empty(0, *shape, dtype=_dtype(dtype), device=device) if first is None else first[:FEW].detach().contiguous()
    return group.gather(few)[donor], torch.empty(0, *target_shape, dtype=_dtype(target_dtype), device=device)


def differs(group: Group, noise_var: object) -> bool:
    """Whether the noise is given point by point: on some rank, so that one with a single point need not guess."""
    mine = isinstance(noise_var, Tensor) and noise_var.ndim > 0 and not (noise_var.ndim == 2 and len(noise_var) == 1)
    return group.any(mine)


def rows_of_all(group: Group, parts: list[Tensor], most: int, generator: torch.Generator) -> list[Tensor]:
    """The rows of all ranks' tensors in the order of the ranks, on each of them: all, or `most` drawn at random."""
    counts = group.facts(len(parts[0]))
    start, here = sum(counts[: group.rank]), torch.arange(len(parts[0]))
    if sum(counts) > most:
        chosen = torch.randperm(sum(counts), generator=generator)[:most].sort().values - start
        here = chosen[(chosen >= 0) & (chosen < len(parts[0]))]
    return [torch.cat(group.gather(part[here.to(part.device)].contiguous())) for part in parts]


def gathered(
    group: Group,
    x: Tensor | Batches,
    y: Tensor | None,
    noise_var: Any,
    limit: int | None = None,
    chosen: Tensor | None = None,
) -> tuple[Tensor, Tensor, Any]:
    """All points of all ranks, on each of them, in the order of the ranks: as one process would hold them.

    Args:
        group: the ranks.
        x: this rank's points.
        y: their targets.
        noise_var: their noise where it differs from point to point, else anything.
        limit: rows N·C above which it is refused.
        chosen: places among all points, ascending; None for all.
    """
    few, kind = opening(group, x, y)
    if isinstance(x, Batches):
        parts = list(x)
        x, y = torch.cat([few[:0], *(part for part, _ in parts)]), torch.cat([kind, *(part for _, part in parts)])
    elif not len(x):
        x, y = few[:0], kind
    assert y is not None
    shard = Shard.of(group, len(x), few)
    rows = shard.points * kind.shape[1:].numel()
    if limit is not None and rows > limit:
        raise GroupError(
            f"Exact() with a group gathers all rows on every rank, at most {limit:,}, got {rows:,}; use LowRank(rank=...)"
        )
    here = slice(None)
    if chosen is not None:
        mine = (chosen >= shard.start) & (chosen < shard.start + len(x))
        here = (chosen[mine] - shard.start).to(x.device)
    everything = [torch.cat(group.gather(part[here].detach().contiguous())) for part in (x, y)]
    if differs(group, noise_var):
        assert isinstance(noise_var, Tensor)
        noise_var = torch.cat(group.gather(noise_var[here].detach().contiguous()))
    return everything[0], everything[1], noise_var


def _dtype(name: str) -> torch.dtype:
    return getattr(torch, name.removeprefix("torch."))
