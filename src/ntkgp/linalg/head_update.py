"""Updates the head when A gets new rows R: G becomes G + RᵀR. The new bracket is certified for G + RᵀR."""

import math

import torch
from torch import Tensor

from ntkgp.linalg.bracket import ROUNDINGS
from ntkgp.linalg.head import PROBES, Head, Product
from ntkgp.linalg.operator import Operator
from ntkgp.linalg.space import WHOLE


def with_more_rows(head: Head, rows: Operator, product: Product, trace: float, rank: int) -> Head:
    """The head of G + RᵀR with `rank` directions: Ritz vectors of the span of the old directions and the new rows.

    The image of the old basis V changes only by Rᵀ(R V). Outside the span of V and all new rows nothing is added, so the old
    bound on the rest of the spectrum holds there; dropped directions may couple to that rest, and the new bound includes this.
    If there are more than about K new rows, random combinations of them (about K) replace them, and the bound is computed
    again.

    Cost: one product with as many columns as new rows, and some P·K² operations.

    Args:
        head: the head of G.
        rows: the new rows R.
        product: v ↦ (G + RᵀR) v.
        trace: the trace of G + RᵀR.
        rank: the number of directions of the new head.
    """
    count, v = rows.shape[0], head.v
    columns = min(count, max(head.rank, 64, rank - head.rank), len(v) - head.rank)
    if columns < count:  # independent of R; the user's generator is not needed
        mix = torch.randn(count, columns, generator=torch.Generator().manual_seed(0), dtype=v.dtype).to(v.device)
    else:
        mix = torch.eye(count, dtype=v.dtype, device=v.device)
    new = rows.rmatmat(mix)
    new = WHOLE.beside(v, new)
    basis = torch.cat([v, new], dim=1)
    image = torch.cat([head.image + rows.rmatmat(rows.matmat(v)), product(new)], dim=1)
    if columns < count:
        return Head.of(product, basis, image, trace, rank, unit=head.unit)
    projected = basis.T @ image
    values, rotation = torch.linalg.eigh((projected + projected.T) / 2)
    values, rotation = values.flip(0).clamp_min(0), rotation.flip(1)
    retained, dropped = rotation.split([min(rank, len(values)), max(0, len(values) - rank)], dim=1)
    v, image, dropped_image = basis @ retained, image @ retained, image @ dropped
    leak = image - v * values[: retained.shape[1]]
    slip = dropped_image - basis @ (basis.T @ dropped_image)  # the part of that image outside the subspace
    rounding = ROUNDINGS * head.unit * trace
    bound = _block_norm(float(values[retained.shape[1]]) if dropped.shape[1] else 0.0, head.tail, _norm(slip))
    tail = min(bound + rounding, max(0.0, trace - float(values[: retained.shape[1]].sum())) + rounding)
    return Head(v, image, values[: retained.shape[1]], _norm(leak), tail, rounding, head.unit)


def refined(head: Head, product: Product, trace: float) -> Head:
    """A head of the same rank after one more block iteration: Ritz vectors of the span of V and G V.

    Cost: products with 2·K columns, 40 more for the bound on the rest, and some P·K² operations.
    """
    v = torch.linalg.qr(head.v).Q
    image = product(v)
    new = WHOLE.beside(v, image)[:, : len(v) - head.rank]
    return Head.of(
        product, torch.cat([v, new], dim=1), torch.cat([image, product(new)], dim=1), trace, head.rank, unit=head.unit
    )


def agrees(head: Head, product: Product) -> bool:
    """Check whether the image is still G V up to the rounding that the bracket allows for; updates add rounding to it.

    Each random combination of columns is off by ‖image − G V‖ in the mean. Cost: a product with PROBES columns.
    """
    mix = torch.randn(head.rank, PROBES, generator=torch.Generator().manual_seed(1), dtype=head.v.dtype).to(head.v.device)
    off = torch.linalg.vector_norm(product(head.v @ mix) - head.image @ mix, dim=0)
    return bool(off.max() <= head.rounding / 2)


def _norm(matrix: Tensor) -> float:
    """The spectral norm."""
    return float(torch.linalg.matrix_norm(matrix.T @ matrix, 2).sqrt()) if matrix.shape[1] else 0.0


def _block_norm(a: float, d: float, b: float) -> float:
    """A bound on the norm of a positive [[A, Bᵀ], [B, D]], from the norms a, d and b of its blocks."""
    return (a + d) / 2 + math.hypot((a - d) / 2, b)
