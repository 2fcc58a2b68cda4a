"""The head when rows are added to A: G becomes G + RᵀR, with R the new rows. Its bracket stays certified for all of G + RᵀR."""

import math

import torch
from torch import Tensor

from ntkgp.linalg.head import Head, Product
from ntkgp.linalg.operator import Operator
from ntkgp.linalg.space import WHOLE

AGREE = 1e-9  # relative: how well the image must be that of the basis, beside rounding that adds up over thousands of updates


def with_more_rows(head: Head, rows: Operator, product: Product, trace: float, rank: int) -> Head:
    """The head of G + RᵀR, of `rank` directions: Ritz vectors of the old ones and those of the new rows together.

    The old basis V keeps its image but for Rᵀ(R V). Outside of a subspace that holds V and all new rows nothing was added, so
    there the old bound on the rest of the spectrum holds; the directions then dropped may couple to that rest, which the
    bound takes in. More new rows than V has columns are met by as many random combinations of them, and the bound is found
    anew.

    Cost: one product with as many columns as rows, and some P·K² operations.

    Args:
        head: of G.
        rows: R.
        product: v ↦ (G + RᵀR) v.
        trace: of G + RᵀR.
        rank: how many directions to keep.
    """
    count, v = rows.shape[0], head.v
    columns = min(count, max(head.rank, 64, rank - head.rank), len(v) - head.rank)
    if columns < count:  # not dependent on the user's generator, and not on R
        mix = torch.randn(count, columns, generator=torch.Generator().manual_seed(0), dtype=v.dtype).to(v.device)
    else:
        mix = torch.eye(count, dtype=v.dtype, device=v.device)
    new = rows.rmatmat(mix)
    new = WHOLE.beside(v, new)
    basis = torch.cat([v, new], dim=1)
    image = torch.cat([head.image + rows.rmatmat(rows.matmat(v)), product(new)], dim=1)
    if columns < count:
        return Head.of(product, basis, image, trace, rank)
    projected = basis.T @ image
    values, rotation = torch.linalg.eigh((projected + projected.T) / 2)
    values, rotation = values.flip(0).clamp_min(0), rotation.flip(1)
    kept, dropped = rotation.split([min(rank, len(values)), max(0, len(values) - rank)], dim=1)
    v, image, rest = basis @ kept, image @ kept, image @ dropped
    leak = image - v * values[: kept.shape[1]]
    slip = rest - basis @ (basis.T @ rest)  # of the dropped directions, out of the subspace
    rounding = 10 * torch.finfo(v.dtype).eps * trace
    bound = _joined(float(values[kept.shape[1]]) if dropped.shape[1] else 0.0, head.tail, _norm(slip))
    tail = min(bound + rounding, max(0.0, trace - float(values[: kept.shape[1]].sum())) + rounding)
    return Head(v, image, values[: kept.shape[1]], _norm(leak), tail)


def refined(head: Head, product: Product, trace: float) -> Head:
    """A head of the same rank from one more block iteration: Ritz vectors of V and G V together.

    Cost: a product with K columns, 40 more for the bound on the rest, and some P·K² operations.
    """
    v = torch.linalg.qr(head.v).Q
    image = product(v)
    new = WHOLE.beside(v, image)[:, : len(v) - head.rank]
    return Head.of(product, torch.cat([v, new], dim=1), torch.cat([image, product(new)], dim=1), trace, head.rank)


def agrees(head: Head, product: Product) -> bool:
    """Whether the image is G V, as far as a random combination of its columns tells. Cost: a product with one column."""
    mix = torch.randn(head.rank, 1, generator=torch.Generator().manual_seed(1), dtype=head.v.dtype).to(head.v.device)
    image = head.image @ mix
    return float((product(head.v @ mix) - image).norm()) <= AGREE * float(image.norm())


def _norm(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix.T @ matrix, 2).sqrt()) if matrix.shape[1] else 0.0


def _joined(a: float, d: float, b: float) -> float:
    """A bound on the norm of [[A, Bᵀ], [B, D]], positive, from those of its blocks."""
    return (a + d) / 2 + math.hypot((a - d) / 2, b)
