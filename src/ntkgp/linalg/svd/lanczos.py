"""The partial SVD by block Golub–Kahan bidiagonalisation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ntkgp._system.check_options import check_count, check_positive
from ntkgp.linalg.operator import Operator
from ntkgp.linalg.svd.partial_svd import PartialSVD, SVDMethod, check_svd_rank, orthonormal, warn_unless_converged


@dataclass(frozen=True)
class Lanczos(SVDMethod):
    """Block Golub–Kahan bidiagonalisation with full reorthogonalisation: the fewest products for a given accuracy.

    Maintains A V_k = U_k B + U_{k+1} L and Aᵀ U_k = V_k Bᵀ with B block bidiagonal; the SVD of the small B gives the triplets,
    and ‖L z‖ gives their residuals without further products. Memory: (n + m) times the basis, which grows until it converges.

    Args:
        tol: stop when all `rank` residuals ‖A v − s u‖ are below tol·s₁ (or below the rounding level).
        block: columns per product. Singular values of higher multiplicity than this can be missed; the default of at least
            `rank` (up to 32) rules this out for small ranks.
        max_basis: largest basis; None takes 20·rank + 200. If that is not enough, a warning reports the residuals.

    Example:
        >>> import torch
        >>> from ntkgp.linalg.operator import Operator
        >>> Lanczos()(Operator.of(torch.diag(torch.tensor([3.0, 2.0, 1.0]))), rank=2).s.round(decimals=4)
        tensor([3., 2.])
    """

    tol: float = 1e-6
    block: int | None = None
    max_basis: int | None = None

    def __post_init__(self) -> None:
        check_positive("Lanczos", tol=self.tol)
        for name in ("block", "max_basis"):
            if getattr(self, name) is not None:
                check_count(getattr(self, name), name, 1)

    def __call__(self, operator: Operator, rank: int, generator: torch.Generator | None = None) -> PartialSVD:
        """The `rank` largest singular triplets of the operator."""
        n, m = operator.shape
        check_svd_rank(rank, n, m)
        limit = min(n, m, max(rank, 20 * rank + 200 if self.max_basis is None else self.max_basis))
        block = max(8, min(rank, 32)) if self.block is None else self.block
        none = operator.normal(n, 0, generator)
        # Start in the range of A: then the basis stays there, and is exhausted exactly when A is.
        image = operator.matmat(operator.normal(m, min(block, limit), generator))
        left = _extend(none, image, image.norm(), operator, generator)[0]
        us, vs = none, operator.normal(m, 0, generator)
        b = torch.zeros(0, 0, dtype=operator.dtype, device=operator.device)
        coupling = torch.zeros(left.shape[1], 0, dtype=b.dtype, device=b.device)
        products = left.shape[1]
        while True:
            # Right block: Aᵀ u = (its projection on the basis) + v r, with r triangular up to a rotation.
            image = operator.rmatmat(left)
            right, r = _extend(vs, image - vs @ (vs.T @ image), image.norm(), operator, generator)
            b = torch.cat([torch.cat([b, b.new_zeros(len(b), right.shape[1])], dim=1), torch.cat([coupling, r.T], dim=1)])
            us, vs = torch.cat([us, left], dim=1), torch.cat([vs, right], dim=1)
            image = operator.matmat(right)
            width = min(block, limit - us.shape[1])
            remainder = image - us @ (us.T @ image)
            products += 2 * right.shape[1]
            left, leak = _extend(us, remainder, image.norm(), operator, generator, width)
            coupling = torch.cat([b.new_zeros(width, len(b) - right.shape[1]), leak], dim=1)
            w, s, zt = torch.linalg.svd(b)
            residuals = (remainder @ zt.T[-right.shape[1] :, :]).norm(dim=0)
            floor = 1e2 * torch.finfo(b.dtype).eps
            converged = len(s) >= rank and bool((residuals[:rank] <= max(self.tol, floor) * s[0]).all())
            if converged or width <= 0:
                break
        u, v = us @ w[:, :rank], vs @ zt.T[:, :rank]
        warn_unless_converged(converged, residuals[:rank], s, self.tol, f"a basis of {limit}", "max_basis")
        return PartialSVD(u, s[:rank], v, residuals[:rank], converged, products)


def _extend(
    basis: Tensor, block: Tensor, scale: Tensor, operator: Operator, generator: torch.Generator | None, width: int | None = None
) -> tuple[Tensor, Tensor]:
    """Orthonormal q, orthogonal to `basis`, and r with block ≈ q r.

    Random directions replace those that are only rounding, compared to `scale`.
    """
    width = block.shape[1] if width is None else max(width, 0)
    q, r = torch.linalg.qr(block)
    negligible = r.diagonal().abs() <= 10 * torch.finfo(block.dtype).eps * scale
    if bool(negligible.any()):
        # Take random left vectors from the range of A first: if A is tall, others would crowd the range out of the basis.
        n, m = operator.shape
        inside = [operator.matmat(operator.normal(m, block.shape[1], generator))] if len(block) == n > m else []
        spare = [q[:, ~negligible], *inside, operator.normal(len(block), block.shape[1], generator)]
        q = _independent(basis, torch.cat(spare, dim=1), block.shape[1])
    for _ in range(2):  # two passes are enough
        q = orthonormal(q - basis @ (basis.T @ q))
    q = q[:, :width]
    return q, q.T @ block


def _independent(basis: Tensor, candidates: Tensor, count: int) -> Tensor:
    """The first `count` candidates independent of `basis` and of each other, made orthonormal to both."""
    chosen = basis
    for column in candidates.T:
        new = column / column.norm()
        for _ in range(2):
            new = new - chosen @ (chosen.T @ new)
        if chosen.shape[1] < basis.shape[1] + count and new.norm() > 1e-3 * torch.finfo(new.dtype).eps ** 0.5:
            chosen = torch.cat([chosen, (new / new.norm()).unsqueeze(1)], dim=1)
    return chosen[:, basis.shape[1] :]
