"""Cholesky factorisation in the memory of the matrix. It never adds jitter without a warning.

LAPACK's factorisation overwrites the matrix. This one keeps it in the other triangle, so that residuals can be measured and
rows added later without a second matrix.
"""

import warnings
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.errors import NumericalWarning
from ntkgp._system.progress import progress_bar

BLOCK = 512  # columns factorised together: nearly all work is then in large matrix products


@dataclass(frozen=True)
class Cholesky:
    """A positive definite matrix I + B and its lower factor L, in one square of memory.

    The lower triangle of `square` is L; its strict upper triangle is that of the matrix. Memory: n² + n numbers.

    Example:
        >>> import torch
        >>> found = Cholesky.of(torch.tensor([[4.0, 2.0], [2.0, 10.0]]))
        >>> found.square.tril()
        tensor([[2., 0.],
                [1., 3.]])
        >>> found.product(torch.eye(2))
        tensor([[ 4.,  2.],
                [ 2., 10.]])
    """

    square: Float[Tensor, "n n"]
    diagonal: Float[Tensor, "n"]  # of the matrix
    jitter: float = 0.0  # added to the diagonal because of rounding

    @classmethod
    def of(cls, matrix: Float[Tensor, "n n"], progress: bool = False) -> "Cholesky":
        """Factorise a matrix in place; only its lower triangle is read. Cost: n³/3 operations; memory n·BLOCK numbers more.

        If rounding errors in B exceed the identity (the noise is too small compared to the kernel), this adds 1, 10, 100, ...
        times the rounding level to the diagonal, as little as works, and a warning says how much; if 100 000 times the rounding
        level is not enough, it raises ValueError.
        """
        diagonal = matrix.diagonal().clone()
        level, jitter = torch.finfo(matrix.dtype).eps * float(diagonal.sum()), 0.0
        done = _factorise(matrix, progress)
        for power in range(6):
            if done:
                break
            jitter = level * 10.0**power
            mirror(matrix, diagonal + jitter)
            done = _factorise(matrix, progress)
        if not done:
            raise ValueError(
                f"expected a positive definite matrix, got one that stays indefinite with {jitter:.1e} times the noise "
                "variance added; check the data for non-finite or extremely large values, or raise noise_var"
            )
        if jitter:
            warnings.warn(
                f"the matrix to factorise is singular to working precision at this noise_var: {jitter:.1e} times the noise "
                f"variance was added to its diagonal (the answer is for noise_var × {1 + jitter:.3g}); raise noise_var or "
                "remove duplicate points",
                NumericalWarning,
                stacklevel=4,
            )
        return cls(matrix, diagonal, jitter)

    def __len__(self) -> int:
        return len(self.square)

    @property
    def log_determinant(self) -> float:
        """Log det of the matrix."""
        return 2 * float(self.square.diagonal().log().sum())

    def half_solve(self, b: Float[Tensor, "n S"]) -> Float[Tensor, "n S"]:
        """L⁻¹ b, differentiable in b. Cost: n²·S operations."""
        return torch.linalg.solve_triangular(self.square, b, upper=False)

    def back_solve(self, b: Float[Tensor, "n S"]) -> Float[Tensor, "n S"]:
        """L⁻ᵀ b. Cost: n²·S operations."""
        return torch.linalg.solve_triangular(self.square.T, b, upper=True)

    def solve(self, b: Float[Tensor, "n S"]) -> Float[Tensor, "n S"]:
        """(L Lᵀ)⁻¹ b. Cost: 2·n²·S operations."""
        return self.back_solve(self.half_solve(b))

    def product(self, v: Float[Tensor, "n S"]) -> Float[Tensor, "n S"]:
        """The matrix (without jitter) times v, from the upper triangle. Cost: 2·n²·S operations."""
        out = self.diagonal.unsqueeze(1) * v
        for block, after in _blocks(len(v)):
            corner, panel = self.square[block, block].triu(1), self.square[block, after]
            out[block] += corner @ v[block] + corner.T @ v[block] + panel @ v[after]
            out[after] += panel.T @ v[block]
        return out

    def lower_product(self, v: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
        """V Lᵀ. Cost: m·n² operations."""
        parts = [v[:, : block.start] @ self.square[block, : block.start].T + v[:, block] @ self.square[block, block].tril().T
                 for block, _ in _blocks(len(self))]  # fmt: skip
        return torch.cat(parts, dim=1)

    def upper_product(self, v: Float[Tensor, "n S"]) -> Float[Tensor, "n S"]:
        """Lᵀ v. Cost: n²·S operations."""
        parts = [self.square[block, block].tril().T @ v[block] + self.square[after, block].T @ v[after]
                 for block, after in _blocks(len(self))]  # fmt: skip
        return torch.cat(parts)

    def matrix(self) -> Float[Tensor, "n n"]:
        """A copy of the matrix, without jitter."""
        copied = self.square.clone()
        mirror(copied, self.diagonal)
        return copied


def cholesky(matrix: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """The lower factor of I + B, with B positive semi-definite up to rounding; the matrix is not changed.

    Example:
        >>> import torch
        >>> cholesky(torch.eye(2) * 4)
        tensor([[2., 0.],
                [0., 2.]])
    """
    return Cholesky.of(matrix.clone()).square.tril()


def mirror(square: Float[Tensor, "n n"], diagonal: Float[Tensor, "n"]) -> None:
    """Write the transposed strict upper triangle into the lower one, and the diagonal, in place."""
    for block, after in _blocks(len(square)):
        corner = square[block, block].triu(1)
        square[block, block] = corner + corner.T
        square[after, block] = square[block, after].T
    square.diagonal().copy_(diagonal)


def _blocks(size: int) -> list[tuple[slice, slice]]:
    """Consecutive blocks of rows, each with the rows after it."""
    return [(slice(start, min(start + BLOCK, size)), slice(min(start + BLOCK, size), size)) for start in range(0, size, BLOCK)]


def _factorise(square: Float[Tensor, "n n"], progress: bool) -> bool:
    """Replace the lower triangle by the factor, after copying it to the upper one; False if the matrix is indefinite.

    Block column by block column, each from all columns before it (left-looking), so every entry is written once.
    """
    size = len(square)
    with progress_bar(progress, total=size**3 / 3, desc="factorising", unit="op", unit_scale=True, leave=False) as bar:
        for block, after in _blocks(size):
            corner, panel = square[block, block], square[after, block]
            square[block, after] = panel.T
            above = corner.tril(-1).T
            if block.start:
                before = square[block, : block.start].T
                corner.addmm_(square[block, : block.start], before, alpha=-1)
                panel.addmm_(square[after, : block.start], before, alpha=-1)
            factor, info = torch.linalg.cholesky_ex(corner)
            if bool(info.any()) or not bool(torch.isfinite(factor).all()):
                corner.copy_(corner.tril() + above)
                _mirror_rest(square, after)
                return False
            panel.copy_(torch.linalg.solve_triangular(factor.T, panel, upper=True, left=False))
            corner.copy_(factor + above)
            bar.update(size * block.stop**2 - 2 / 3 * block.stop**3 - bar.n)
    return True


def _mirror_rest(square: Float[Tensor, "n n"], after: slice) -> None:
    """Copy the lower triangle that the factorisation has not reached to the upper one."""
    for block, later in _blocks(len(square)):
        if block.start >= after.start:
            corner = square[block, block]
            corner.copy_(corner.tril() + corner.tril(-1).T)
            square[block, later] = square[later, block].T
