"""Vectors over the weights on several ranks: split over the ranks, or a copy on each."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ntkgp.distributed.group import Group
from ntkgp.linalg.space import Space, Whole, normal_rows
from ntkgp.tangent.jacobian import working_bytes


@dataclass(frozen=True)
class Split(Space):
    """Vectors split by rows over the ranks: inner products are sums over the ranks."""

    group: Group
    size: int  # P

    spread = True

    @property
    def rows(self) -> slice:
        """The rows of this rank."""
        each = -(-self.size // self.group.size)
        return slice(min(each * self.group.rank, self.size), min(each * (self.group.rank + 1), self.size))

    def length(self, a: Tensor) -> int:
        """P."""
        return self.size

    def gram(self, a: Tensor, b: Tensor) -> Tensor:
        """aᵀ b."""
        return self.group.sum(a.T @ b)

    def dots(self, a: Tensor, b: Tensor) -> Tensor:
        """The inner product of each column of a with the same column of b."""
        return self.group.sum((a * b).sum(dim=0))

    def orthonormal(self, block: Tensor) -> Tensor:
        """An orthonormal basis of the span: QR of the rows of each rank, then QR of the small factors; as stable as one QR."""
        q, r = torch.linalg.qr(block)
        small = self.group.gather(r)
        top = torch.linalg.qr(torch.cat(small)).Q.split([len(part) for part in small])
        return q @ top[self.group.rank]

    def normal(
        self, columns: int, generator: torch.Generator | None, dtype: torch.dtype, device: torch.device, length: int
    ) -> Tensor:
        """Draw columns of standard normal numbers; return the rows of this rank."""
        return normal_rows(length, self.rows, columns, generator, dtype, device)

    def agreed(self, decision: bool) -> bool:
        """Make one decision for all ranks: True if any rank says True."""
        return self.group.any(decision)

    def blocks(self, v: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield complete columns, a few at a time. Traffic: P numbers per column; memory four working sets, or four columns."""
        columns = max(1, working_bytes(v.device) // max(1, self.size * v.element_size()))
        for start in range(0, v.shape[1], columns):
            these = slice(start, min(start + columns, v.shape[1]))
            yield these, torch.cat(self.group.gather(v[:, these].contiguous()))

    def whole(self, v: Tensor) -> Tensor:
        """Gather all rows of all columns, on all ranks."""
        return torch.cat(self.group.gather(v.contiguous()))


def replicated(group: Group) -> Space:
    """The space of vectors with a copy on every rank."""
    return Whole(group.any)
