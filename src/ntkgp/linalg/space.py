"""Inner products of long vectors, which may be spread over processes, some rows on each; who multiplies need not know."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 65536  # rows of random numbers drawn together


class Space(ABC):
    """Where columns of length P live: all that depends on more than one of their rows at a time."""

    spread: bool  # whether only some of the rows are here

    @abstractmethod
    def gram(self, a: Tensor, b: Tensor) -> Tensor:
        """aᵀ b."""

    @abstractmethod
    def dots(self, a: Tensor, b: Tensor) -> Tensor:
        """The inner product of each column of a with that of b."""

    @abstractmethod
    def orthonormal(self, block: Tensor) -> Tensor:
        """An orthonormal basis of the span of the columns."""

    @abstractmethod
    def normal(
        self, columns: int, generator: torch.Generator | None, dtype: torch.dtype, device: torch.device, length: int
    ) -> Tensor:
        """Columns of `length` standard normal numbers, of which the rows that are here."""

    @abstractmethod
    def agreed(self, decision: bool) -> bool:
        """The same decision on all processes: rounding must not lead them different ways."""

    def norms(self, a: Tensor) -> Tensor:
        """The length of each column."""
        return self.dots(a, a).sqrt()

    def beside(self, v: Tensor, new: Tensor) -> Tensor:
        """Orthonormal columns that are orthogonal to the orthonormal v, and span the new ones with it.

        Where the new ones lie in the span of v already they are any others: QR of what is left of them alone would put axes
        there, and an axis may lie in v as well.
        """
        return self.orthonormal(torch.cat([v, new - v @ self.gram(v, new)], dim=1))[:, v.shape[1] :]


@dataclass(frozen=True)
class Whole(Space):
    """Vectors that are here from end to end; other processes may have copies, and `agree` makes their decisions one."""

    agree: Callable[[bool], bool] | None = None

    spread = False

    def gram(self, a: Tensor, b: Tensor) -> Tensor:
        """aᵀ b."""
        return a.T @ b

    def dots(self, a: Tensor, b: Tensor) -> Tensor:
        """The inner product of each column of a with that of b."""
        return (a * b).sum(dim=0)

    def norms(self, a: Tensor) -> Tensor:
        """The length of each column; safe from overflow."""
        return torch.linalg.vector_norm(a, dim=0)

    def orthonormal(self, block: Tensor) -> Tensor:
        """An orthonormal basis of the span of the columns."""
        return torch.linalg.qr(block).Q

    def normal(
        self, columns: int, generator: torch.Generator | None, dtype: torch.dtype, device: torch.device, length: int
    ) -> Tensor:
        """Columns of `length` standard normal numbers."""
        return normal_rows(length, slice(0, length), columns, generator, dtype, device)

    def agreed(self, decision: bool) -> bool:
        """The same decision on all processes."""
        return decision if self.agree is None else self.agree(decision)


WHOLE = Whole()


def normal_rows(
    length: int, kept: slice, columns: int, generator: torch.Generator | None, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Some rows of a `length`×`columns` matrix of standard normal numbers: the same ones however the matrix is cut up.

    All rows are drawn, block by block, and those wanted are kept; the generator ends where it would for the whole. A generator
    may live on the CPU.
    """
    place = device if generator is None else generator.device
    parts = [torch.empty(0, columns, dtype=dtype, device=device)]
    for start in range(0, length, BLOCK):
        block = torch.randn(min(BLOCK, length - start), columns, generator=generator, dtype=dtype, device=place)
        first, last = max(kept.start, start) - start, min(kept.stop, start + len(block)) - start
        if first < last:
            parts.append(block[first:last].to(device))
    return parts[-1] if len(parts) == 2 and length <= BLOCK else torch.cat(parts)
