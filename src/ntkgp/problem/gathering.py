"""The user's data on several ranks: check that the ranks agree, and gather all points on every rank."""

from typing import Any

import torch
from torch import Tensor

from ntkgp._system.errors import GroupError
from ntkgp.distributed.group import Group
from ntkgp.distributed.shard import Shard
from ntkgp.problem.batches import Batches

SHARED = 4  # training points that every rank receives, to open the network on


def opening(group: Group, x: Tensor | Batches, y: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return a few points, the same on all ranks, and an empty target of the common shape and dtype: (0,) or (0, C).

    A rank may have no points: tensors of length 0, or no batches. All others must agree in shapes and dtypes.
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
        raise GroupError("no rank has any points; pass at least one point on some rank")
    donor, (shape, dtype, target_shape, target_dtype) = kinds[0]
    for rank, kind in kinds:
        if kind != known[donor]:
            raise GroupError(
                "x and y must have the same shapes (except for the first axis) and dtypes on all ranks, got "
                f"{known[donor]} on rank {donor} and {kind} on rank {rank}"
            )
    device = x.device
    few = torch.empty(0, *shape, dtype=_dtype(dtype), device=device) if first is None else first[:SHARED].detach().contiguous()
    return group.gather(few)[donor], torch.empty(0, *target_shape, dtype=_dtype(target_dtype), device=device)


def noise_differs(noise_var: object) -> bool:
    """Whether the noise is given per point, not as a number or per output (1, C)."""
    return isinstance(noise_var, Tensor) and noise_var.ndim > 0 and not (noise_var.ndim == 2 and len(noise_var) == 1)


def rows_of_all(group: Group, parts: list[Tensor], most: int, generator: torch.Generator) -> list[Tensor]:
    """Gather the rows of all ranks' tensors on every rank, in rank order: all rows, or at most `most` drawn at random."""
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
    """Gather the points of all ranks on every rank, in rank order, as one process would hold them.

    Args:
        group: the ranks.
        x: this rank's points.
        y: their targets.
        noise_var: their noise; gathered only if it is given per point on some rank.
        limit: raise if there are more rows N·C than this.
        chosen: indices of the points to gather, ascending, counted over all ranks; None for all.
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
            f"Exact() with a group gathers all rows on every rank and takes at most {limit:,} rows, got {rows:,}; use "
            "LowRank(rank=...)"
        )
    here = slice(None)
    if chosen is not None:
        mine = (chosen >= shard.start) & (chosen < shard.start + len(x))
        here = (chosen[mine] - shard.start).to(x.device)
    everything = [torch.cat(group.gather(part[here].detach().contiguous())) for part in (x, y)]
    if group.any(noise_differs(noise_var)):  # a rank with one point cannot tell whether its noise (1, C) is per point
        if not isinstance(noise_var, Tensor):
            raise TypeError(
                f"noise_var is {noise_var!r} on this rank and a tensor with one value per point on another; pass a tensor of "
                f"shape ({len(x)},) or ({len(x)}, C) here too"
            )
        noise_var = torch.cat(group.gather(noise_var[here].detach().contiguous()))
    return everything[0], everything[1], noise_var


def _dtype(name: str) -> torch.dtype:
    return getattr(torch, name.removeprefix("torch."))
