"""The factor of a normal matrix H = I + G that grows by data: rows R turn H into H + RᵀR, and earlier versions stay."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp.linalg.cholesky import Cholesky
from ntkgp.linalg.growing_cholesky import GrowingCholesky

# Merge rows into a new matrix when there are more than MIN_MERGE of them, and more than 1/MERGE_FRACTION of the matrix's.
MIN_MERGE, MERGE_FRACTION = 128, 4


@dataclass(frozen=True)
class GrowingNormal:
    """H = LLᵀ + RᵀR: the factor L of a first matrix, and the rows R that came later as S = R L⁻ᵀ.

    With u = L⁻¹b and t = (I + SSᵀ)⁻¹Su, ``bᵀH⁻¹b = ‖u − Sᵀt‖² + ‖t‖²``: a sum of squares, so nothing cancels, and errors of t
    count only to second order. Memory: P² numbers, and m·(P + m) for m rows.

    Example:
        >>> import torch
        >>> h = GrowingNormal.of(Cholesky.of(torch.tensor([[4.0, 2.0], [2.0, 10.0]])))
        >>> h = h.extended(torch.tensor([[0.0, 1.0]]))  # now [[4, 2], [2, 11]]
        >>> h.solve(torch.tensor([[6.0], [13.0]]))
        tensor([[1.],
                [1.]])
    """

    base: Cholesky
    rows: Float[Tensor, "m P"]  # S
    corner: GrowingCholesky  # of I + SSᵀ

    @classmethod
    def of(cls, base: Cholesky) -> "GrowingNormal":
        """Start without later rows."""
        empty = base.square.new_empty(0, len(base))
        return cls(base, empty, GrowingCholesky.whole(empty[:, :0], 1.0, 0.0))

    def __len__(self) -> int:
        return len(self.base)

    @property
    def count(self) -> int:
        """The number of rows that came later."""
        return len(self.rows)

    @property
    def log_determinant(self) -> float:
        """Log det H."""
        return self.base.log_determinant + 2 * float(self.corner.diagonal().log().sum())

    def half(self, b: Float[Tensor, "P S"]) -> Float[Tensor, "P_m S"]:
        """A matrix F with FᵀF = bᵀH⁻¹b, differentiable in b. Cost: P·(P + 4m)·S operations."""
        u = self.base.half_solve(b)
        if not self.count:
            return u
        t = self.corner.solve(self.rows @ u)
        return torch.cat([u - self.rows.T @ t, t])

    def solve(self, b: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """H⁻¹ b. Cost: 2·P·(P + 2m)·S operations."""
        return self.base.back_solve(self.half(b)[: len(self)])

    def draw(self, ground: Float[Tensor, "P T"], noise: Float[Tensor, "m T"]) -> Float[Tensor, "P T"]:
        """Columns with covariance H⁻¹, from standard normal numbers. Cost: P·(P + 4m)·T operations."""
        if self.count:
            ground = ground - self.rows.T @ self.corner.solve(self.rows @ ground + noise)
        return self.base.back_solve(ground)

    def product(self, v: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """H v, without jitter. Cost: 4·P·(P + m)·S operations."""
        out = self.base.product(v)
        if self.count:
            out = out + self.base.lower_product((self.rows.T @ (self.rows @ self.base.upper_product(v))).T).T
        return out

    def takes(self, more: int) -> bool:
        """Whether so many more rows are few enough to be kept beside the factor."""
        return self.count + more <= max(MIN_MERGE, len(self) // MERGE_FRACTION)

    def extended(self, rows: Float[Tensor, "k P"]) -> "GrowingNormal":
        """H + RᵀR by appending the rows. Cost: k·P·(P + m) operations, and a copy of the rows that came before."""
        new = self.base.half_solve(rows.T).T
        block = new @ new.T
        block.diagonal().add_(1)
        corner = self.corner.extended(new @ self.rows.T, block)
        if corner is None:  # rounding made I + SSᵀ indefinite
            return self.merged(rows.T @ rows)
        return replace(self, rows=torch.cat([self.rows, new]), corner=corner)

    def merged(self, more: Float[Tensor, "P P"] | None = None, order: Tensor | None = None) -> "GrowingNormal":
        """H + M as one new matrix, with rows and columns in another order if given.

        Only the lower triangle of M is read. Cost: P³/3 + m·P² operations; memory P² numbers.
        """
        matrix = self.base.matrix()
        if self.count:
            rows = self.base.lower_product(self.rows)
            matrix.addmm_(rows.T, rows)
        matrix = matrix if more is None else matrix.add_(more)
        return GrowingNormal.of(Cholesky.of(matrix if order is None else matrix[order][:, order]))
