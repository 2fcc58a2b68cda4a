"""Inner products of long vectors, which may be split by rows over processes; callers need not know."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ntkgp._system.check_options import check_generator

DRAWN_ROWS = 65536  # rows of random numbers per draw


class Space(ABC):
    """The inner-product space of columns of length P: every operation that combines different rows."""

    spread: bool  # whether this process has only some of the rows

    @abstractmethod
    def gram(self, a: Tensor, b: Tensor) -> Tensor:
        """aᵀ b."""

    @abstractmethod
    def dots(self, a: Tensor, b: Tensor) -> Tensor:
        """The inner product of each column of a with the same column of b."""

    @abstractmethod
    def orthonormal(self, block: Tensor) -> Tensor:
        """An orthonormal basis of the span of the columns."""

    @abstractmethod
    def normal(
        self, columns: int, generator: torch.Generator | None, dtype: torch.dtype, device: torch.device, length: int
    ) -> Tensor:
        """Draw columns of `length` standard normal numbers; return the rows of this process."""

    @abstractmethod
    def agreed(self, decision: bool) -> bool:
        """Make one decision for all processes: they must not differ because of rounding."""

    def length(self, a: Tensor) -> int:
        """P: the length of the complete columns."""
        return len(a)

    def norms(self, a: Tensor) -> Tensor:
        """The norm of each column."""
        return self.dots(a, a).sqrt()

    def beside(self, v: Tensor, new: Tensor) -> Tensor:
        """Orthonormal columns that are orthogonal to the orthonormal v and, together with v, span the new columns.

        New columns inside the span of v are replaced by arbitrary directions orthogonal to v. The QR must include v: a QR of
        the projected new columns alone would fill in coordinate axes there, which may lie in the span of v.
        """
        return self.orthonormal(torch.cat([v, new - v @ self.gram(v, new)], dim=1))[:, v.shape[1] :]


@dataclass(frozen=True)
class Whole(Space):
    """Vectors that this process has completely. If other processes have copies, `agree` makes one decision for all."""

    agree: Callable[[bool], bool] | None = None

    spread = False

    def gram(self, a: Tensor, b: Tensor) -> Tensor:
        """aᵀ b."""
        return a.T @ b

    def dots(self, a: Tensor, b: Tensor) -> Tensor:
        """The inner product of each column of a with the same column of b."""
        return (a * b).sum(dim=0)

    def norms(self, a: Tensor) -> Tensor:
        """The norm of each column, without overflow."""
        return torch.linalg.vector_norm(a, dim=0)

    def orthonormal(self, block: Tensor) -> Tensor:
        """An orthonormal basis of the span of the columns."""
        return torch.linalg.qr(block).Q

    def normal(
        self, columns: int, generator: torch.Generator | None, dtype: torch.dtype, device: torch.device, length: int
    ) -> Tensor:
        """Draw columns of `length` standard normal numbers."""
        return normal_rows(length, slice(0, length), columns, generator, dtype, device)

    def agreed(self, decision: bool) -> bool:
        """Make one decision for all processes."""
        return decision if self.agree is None else self.agree(decision)


WHOLE = Whole()


def normal_rows(
    length: int, rows: slice, columns: int, generator: torch.Generator | None, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The slice `rows` of a `length`×`columns` matrix of standard normal numbers.

    The matrix does not depend on `rows`: all rows are drawn, block by block, so the generator always ends in the same state.
    The generator may be on the CPU.
    """
    check_generator(generator)
    place = device if generator is None else generator.device
    parts = [torch.empty(0, columns, dtype=dtype, device=device)]
    for start in range(0, length, DRAWN_ROWS):
        block = torch.randn(min(DRAWN_ROWS, length - start), columns, generator=generator, dtype=dtype, device=place)
        first, last = max(rows.start, start) - start, min(rows.stop, start + len(block)) - start
        if first < last:
            parts.append(block[first:last].to(device))
    return parts[-1] if len(parts) == 2 and length <= DRAWN_ROWS else torch.cat(parts)
