"""A Cholesky factor that grows by rows: what was computed is neither computed nor copied again."""

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.growth import Room, roomier
from ntkgp.linalg.cholesky import factorise

LEAST, SHARE = 128, 4  # rows that came later are made one with the others when they are more than these, and than 1/4


@dataclass(frozen=True)
class GrowingCholesky:
    """The lower factor of I + B as [[base, 0], [left, corner]]; it never changes, its successors share its memory.

    Growing row by row is ordinary Cholesky factorisation in another order, as stable as doing it at once: nothing drifts.
    Memory: n² numbers, and for r rows that came later twice r·(n + r).

    Example:
        >>> import torch
        >>> a = torch.tensor([[4.0, 2.0], [2.0, 10.0]])
        >>> grown = GrowingCholesky.of(a[:1, :1]).extended(a[1:, :1], a[1:, 1:])
        >>> grown.dense()
        tensor([[2., 0.],
                [1., 3.]])
    """

    base: Float[Tensor, "n n"]
    left: Float[Tensor, "room n"]  # memory; the first `count` rows are in use
    corner: Float[Tensor, "room room"]
    largest: float  # entry of I + B: it stands on the diagonal
    jitter: float = 0.0  # added to the diagonal, where rounding asked for it
    count: int = 0
    room: Room = field(default_factory=lambda: Room(0))

    @classmethod
    def of(cls, matrix: Float[Tensor, "n n"]) -> "GrowingCholesky":
        """The factor of a positive definite matrix; jitter is announced. Cost: n³/3 operations."""
        base, jitter = factorise(matrix)
        return cls.whole(base, float(matrix.diagonal().max()), jitter)

    @classmethod
    def whole(cls, base: Float[Tensor, "n n"], largest: float, jitter: float) -> "GrowingCholesky":
        """A factor that is there already, in one piece."""
        return cls(base, base.new_empty(0, len(base)), base.new_empty(0, 0), largest, jitter)

    def with_rows(self, left: Float[Tensor, "r n"], corner: Float[Tensor, "r r"], size: int) -> "GrowingCholesky":
        """A factor in one piece with the rows that came later, in memory of `size` rows.

        With the size that it had they lie as they did, a row as far from the next, and products with them round as they did.
        """
        room, count = Room(size), len(left)
        memory, square = left.new_empty(size, len(self.base)), corner.new_zeros(size, size)
        memory[:count], square[:count, :count] = left, corner
        return replace(self, left=memory, corner=square, count=count, room=room)

    def __len__(self) -> int:
        return len(self.base) + self.count

    @property
    def rows(self) -> tuple[Float[Tensor, "r n"], Float[Tensor, "r r"]]:
        """What came later: the part below the base, and the corner (of which only the lower triangle means anything)."""
        return self.left[: self.count], self.corner[: self.count, : self.count]

    def diagonal(self) -> Float[Tensor, "m"]:
        """The diagonal of L."""
        return torch.cat([self.base.diagonal(), self.rows[1].diagonal()])

    def dense(self) -> Float[Tensor, "m m"]:
        """L as one matrix; a copy unless nothing came later."""
        return self.base if self.count == 0 else _assembled(self.base, *self.rows)

    def half_solve(self, b: Float[Tensor, "m S"]) -> Float[Tensor, "m S"]:
        """L⁻¹ b, differentiable in b. Cost: m²·S operations."""
        n, (left, corner) = len(self.base), self.rows
        top = torch.linalg.solve_triangular(self.base, b[:n], upper=False)
        if self.count == 0:
            return top
        return torch.cat([top, torch.linalg.solve_triangular(corner, b[n:] - left @ top, upper=False)])

    def solve(self, b: Float[Tensor, "m S"]) -> Float[Tensor, "m S"]:
        """(L Lᵀ)⁻¹ b. Cost: 2·m²·S operations; L is not copied, as ``torch.cholesky_solve`` would."""
        n, (left, corner), half = len(self.base), self.rows, self.half_solve(b)
        bottom = torch.linalg.solve_triangular(corner.T, half[n:], upper=True)
        rest = half[:n] - left.T @ bottom if self.count else half[:n]
        return torch.cat([torch.linalg.solve_triangular(self.base.T, rest, upper=True), bottom])

    def backward_error(self, surprise: Tensor, solution: Float[Tensor, "m"], b: Float[Tensor, "m"]) -> float:
        """The relative change of the matrix that explains some residuals of a solution: of the order of rounding if stable."""
        size = (self.largest + self.jitter) * float(solution.abs().sum()) + float(b.abs().max())
        return float(surprise.abs().max()) / max(size, torch.finfo(b.dtype).tiny)

    def extended(self, cross: Float[Tensor, "k m"], block: Float[Tensor, "k k"]) -> "GrowingCholesky | None":
        """The factor of [[I + B, crossᵀ], [cross, block]]; None where rounding makes that indefinite.

        Cost: k·m² operations and k·m numbers written; now and then m² numbers are copied, when the later rows have become a
        quarter of all.
        """
        rows = self.half_solve(cross.T).T
        schur = block - rows @ rows.T
        schur.diagonal().add_(self.jitter)
        corner, info = torch.linalg.cholesky_ex(schur)
        if bool(info.any()):
            return None
        largest = max(self.largest, float(block.diagonal().max()))
        n, start, stop = len(self.base), self.count, self.count + len(rows)
        if stop > max(LEAST, n // SHARE):
            return self.whole(_assembled(self.dense(), rows, corner), largest, self.jitter)
        room, left, square = self.room, self.left, self.corner
        if not room.claim(start, len(rows)):
            moved = self.with_rows(*self.rows, roomier(stop))
            room, left, square = moved.room, moved.left, moved.corner
            room.claim(start, len(rows))
        # Past autograd's count of changes: what it has saved are views of other rows, which stay what they were.
        left.data[start:stop] = rows[:, :n]
        square.data[start:stop, :start] = rows[:, n:]
        square.data[start:stop, start:stop] = corner
        return GrowingCholesky(self.base, left, square, largest, self.jitter, stop, room)


def _assembled(base: Tensor, left: Tensor, corner: Tensor) -> Tensor:
    n, k = len(base), len(corner)
    whole = base.new_zeros(n + k, n + k)
    whole[:n, :n], whole[n:, :n], whole[n:, n:] = base, left, corner.tril()
    return whole
