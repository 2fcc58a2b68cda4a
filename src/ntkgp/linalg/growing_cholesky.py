"""A Cholesky factor that grows by rows: finished rows are not recomputed and rarely copied."""

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.memory import Room, roomier
from ntkgp.linalg.cholesky import BLOCK, Cholesky

# Merge appended rows into the base when there are more than MIN_MERGE of them, and more than 1/MERGE_FRACTION of the base.
MIN_MERGE, MERGE_FRACTION = 128, 4


@dataclass(frozen=True)
class GrowingCholesky:
    """The lower factor of I + B as [[base, 0], [left, corner]]; immutable, extended factors share its memory.

    Appending rows is ordinary Cholesky factorisation in another order, and just as stable: nothing drifts.
    Memory: n² numbers, plus about 2·r·(n + r) for r appended rows.

    Example:
        >>> import torch
        >>> a = torch.tensor([[4.0, 2.0], [2.0, 10.0]])
        >>> grown = GrowingCholesky.of(Cholesky.of(a[:1, :1].clone())).extended(a[1:, :1], a[1:, 1:])
        >>> grown.dense()
        tensor([[2., 0.],
                [1., 3.]])
    """

    base: Float[Tensor, "n n"]  # only the lower triangle is valid
    left: Float[Tensor, "room n"]  # buffer; the first `count` rows are in use
    corner: Float[Tensor, "room room"]
    largest: float  # the largest entry of I + B; it is on the diagonal
    jitter: float = 0.0  # added to the diagonal because of rounding
    count: int = 0
    room: Room = field(default_factory=lambda: Room(0))

    @classmethod
    def of(cls, found: Cholesky) -> "GrowingCholesky":
        """Start from a factorised matrix, and share its memory."""
        return cls.whole(found.square, float(found.diagonal.max()), found.jitter)

    @classmethod
    def whole(cls, base: Float[Tensor, "n n"], largest: float, jitter: float) -> "GrowingCholesky":
        """Wrap an existing factor, without appended rows."""
        return cls(base, base.new_empty(0, len(base)), base.new_empty(0, 0), largest, jitter)

    def with_rows(self, left: Float[Tensor, "r n"], corner: Float[Tensor, "r r"], size: int) -> "GrowingCholesky":
        """Copy the appended rows into a new buffer of `size` rows.

        A buffer of the original size has the original strides, so products with the rows round exactly as before.
        """
        room, count = Room(size), len(left)
        memory, square = left.new_empty(size, len(self.base)), corner.new_zeros(size, size)
        memory[:count], square[:count, :count] = left, corner
        return replace(self, left=memory, corner=square, count=count, room=room)

    def __len__(self) -> int:
        return len(self.base) + self.count

    @property
    def rows(self) -> tuple[Float[Tensor, "r n"], Float[Tensor, "r r"]]:
        """The appended rows: the part below the base, and the corner (only its lower triangle is valid)."""
        return self.left[: self.count], self.corner[: self.count, : self.count]

    def diagonal(self) -> Float[Tensor, "m"]:
        """The diagonal of L."""
        return torch.cat([self.base.diagonal(), self.rows[1].diagonal()])

    def dense(self) -> Float[Tensor, "m m"]:
        """A copy of L as one matrix."""
        return self.base.tril() if self.count == 0 else _assembled(self.base, *self.rows)

    @property
    def inverse_diagonal(self) -> Float[Tensor, "m"]:
        """The diagonal of (L Lᵀ)⁻¹: the squared norms of the columns of L⁻¹. Cost: m³ operations; memory BLOCK columns."""
        unit = torch.zeros(len(self), BLOCK, dtype=self.base.dtype, device=self.base.device)
        norms = []
        for start in range(0, len(self), BLOCK):
            columns = unit[:, : min(BLOCK, len(self) - start)].zero_()
            columns[start : start + BLOCK].fill_diagonal_(1)
            norms.append(self.half_solve(columns).square().sum(dim=0))
        return torch.cat(norms)

    def half_solve(self, b: Float[Tensor, "m S"]) -> Float[Tensor, "m S"]:
        """L⁻¹ b, differentiable in b. Cost: m²·S operations."""
        n, (left, corner) = len(self.base), self.rows
        top = torch.linalg.solve_triangular(self.base, b[:n], upper=False)
        if self.count == 0:
            return top
        return torch.cat([top, torch.linalg.solve_triangular(corner, b[n:] - left @ top, upper=False)])

    def solve(self, b: Float[Tensor, "m S"]) -> Float[Tensor, "m S"]:
        """(L Lᵀ)⁻¹ b. Cost: 2·m²·S operations; no copy of L, unlike ``torch.cholesky_solve``."""
        n, (left, corner), half = len(self.base), self.rows, self.half_solve(b)
        bottom = torch.linalg.solve_triangular(corner.T, half[n:], upper=True)
        top = half[:n] - left.T @ bottom if self.count else half[:n]
        return torch.cat([torch.linalg.solve_triangular(self.base.T, top, upper=True), bottom])

    def backward_error(self, surprise: Tensor, solution: Float[Tensor, "m"], b: Float[Tensor, "m"]) -> float:
        """The relative change of the matrix that explains the residuals `surprise`; near rounding level if stable."""
        size = (self.largest + self.jitter) * float(solution.abs().sum()) + float(b.abs().max())
        return float(surprise.abs().max()) / max(size, torch.finfo(b.dtype).tiny)

    def extended(self, cross: Float[Tensor, "k m"], block: Float[Tensor, "k k"]) -> "GrowingCholesky | None":
        """The factor of [[I + B, crossᵀ], [cross, block]]; None if rounding makes that indefinite.

        Cost: k·m² operations and k·m numbers written; a merge of the appended rows into the base copies m² numbers.
        """
        rows = self.half_solve(cross.T).T
        schur = block - rows @ rows.T
        schur.diagonal().add_(self.jitter)
        corner, info = torch.linalg.cholesky_ex(schur)
        if bool(info.any()):
            return None
        largest = max(self.largest, float(block.diagonal().max()))
        n, start, stop = len(self.base), self.count, self.count + len(rows)
        if stop > max(MIN_MERGE, n // MERGE_FRACTION):
            return self.whole(_assembled(self.dense(), rows, corner), largest, self.jitter)
        room, left, square = self.room, self.left, self.corner
        if not room.claim(start, len(rows)):
            moved = self.with_rows(*self.rows, roomier(stop))
            room, left, square = moved.room, moved.left, moved.corner
            room.claim(start, len(rows))
        # Through .data, which autograd does not count as a change: its saved tensors are views of other rows, left unchanged.
        left.data[start:stop] = rows[:, :n]
        square.data[start:stop, :start] = rows[:, n:]
        square.data[start:stop, start:stop] = corner
        return GrowingCholesky(self.base, left, square, largest, self.jitter, stop, room)


def _assembled(base: Tensor, left: Tensor, corner: Tensor) -> Tensor:
    """[[base, 0], [left, corner]] as one matrix."""
    n, k = len(base), len(corner)
    whole = base.new_zeros(n + k, n + k)
    whole[:n, :n], whole[n:, :n], whole[n:, n:] = base.tril(), left, corner.tril()
    return whole
