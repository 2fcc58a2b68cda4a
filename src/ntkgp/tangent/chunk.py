"""Some rows of J(x): layer factors where they are known, autodiff for the other parameters."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.memory import by_halves
from ntkgp.tangent.autodiff import AutodiffRows
from ntkgp.tangent.factors.factor import Factor
from ntkgp.tangent.layout import Packed


@dataclass(frozen=True)
class Chunk:
    """The rows of J at n points.

    For linear layers on one position a sample J v = Σ_layers g · (V a), Jᵀ u = Σ_layers (u g)ᵀ a, and the kernel J J′ᵀ =
    Σ_layers (g g′ᵀ) ∘ (a a′ᵀ): no autodiff, every product a matrix product.
    """

    factors: list[Factor]  # one per layer of the packing
    others: AutodiffRows | None
    count: int  # n

    def matmat(self, v: Packed) -> Float[Tensor, "nC S"]:
        """J v; fewer points at a time where memory runs out."""

        def product(rows: slice) -> Tensor:
            piece = self.points(rows)
            terms = [factor.matmat(part) for factor, part in zip(piece.factors, v[:-1], strict=True)]
            return _sum([*terms, piece.others.matmat(v[-1])] if piece.others else terms)

        return _joined(by_halves(product, self.count))

    def accumulate(self, u: Float[Tensor, "nC S"], out: Packed) -> None:
        """Add Jᵀ u to `out`; fewer points at a time where memory runs out, layer by layer, so that nothing is added twice."""
        outputs = len(u) // self.count
        for one, part in zip([*self.factors, *([self.others] if self.others else [])], out, strict=False):

            def product(rows: slice, one: Any = one, part: Tensor = part) -> None:
                one.points(rows).accumulate(u[outputs * rows.start : outputs * rows.stop], part)

            by_halves(product, self.count)

    def dense(self, shapes: list[torch.Size]) -> Packed:
        """The rows of J as packed vectors; `shapes` are those of the packed layers."""
        entries = [factor.dense().unflatten(1, shape) for factor, shape in zip(self.factors, shapes, strict=True)]
        return [*entries, self.others.dense() if self.others else entries[0].new_zeros(len(entries[0]), 0)]

    def kernel(self, other: "Chunk") -> Float[Tensor, "nC mC"]:
        """J(x) J(x′)ᵀ; fewer points at a time where memory runs out."""

        def block(rows: slice) -> Tensor:
            piece = self if rows == slice(0, self.count) else self.points(rows)
            terms = [mine.kernel(theirs) for mine, theirs in zip(piece.factors, other.factors, strict=True)]
            return _sum([*terms, piece.others.kernel(other.others)] if piece.others and other.others else terms)

        return _joined(by_halves(block, self.count))

    def diag(self) -> Float[Tensor, "nC"]:
        """The diagonal of J(x) J(x)ᵀ."""
        terms = [factor.diag() for factor in self.factors]
        return _sum([*terms, self.others.diag()] if self.others else terms)

    def points(self, rows: slice) -> "Chunk":
        """The same for fewer points, as views."""
        others = self.others.points(rows) if self.others else None
        return Chunk([factor.points(rows) for factor in self.factors], others, rows.stop - rows.start)

    def to(self, dtype: torch.dtype) -> "Chunk":
        """The same with factors in another dtype."""
        return Chunk([factor.to(dtype) for factor in self.factors], self.others, self.count)

    def room_for(self, points: int, others: AutodiffRows | None) -> "Chunk":
        """Memory for more points of the same kind, to be filled by :meth:`write`.

        One allocation, because kept factors between freed intermediates would leave holes almost as large as themselves.
        """
        return Chunk([_mapped(factor, lambda t: t.new_empty(points, *t.shape[1:])) for factor in self.factors], others, points)

    def write(self, start: int, part: "Chunk") -> None:
        """Put the factors of some points where they belong.

        Past autograd's count of changes: what it has saved are views of other rows, which stay what they were.
        """
        for mine, theirs in zip(self.factors, part.factors, strict=True):
            for name, tensor in theirs.tensors.items():
                mine.tensors[name].data[start : start + part.count] = tensor.detach()

    def working_numbers(self, columns: int) -> int:
        """Numbers per point in the largest intermediate of a product with `columns` columns."""
        return max(part.working_numbers(columns) for part in (*self.factors, *([self.others] if self.others else [])))

    @property
    def kernel_operations(self) -> int:
        """Multiplications to compare two points in a kernel; autodiff rows cost their dot products."""
        others = self.others.outputs**2 * self.others.layout.size if self.others else 0
        return others + sum(factor.kernel_operations for factor in self.factors)

    @property
    def bytes_per_point(self) -> int:
        """Memory it takes to keep the chunk."""
        return sum(factor.bytes_per_point for factor in self.factors)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _mapped(factor: Factor, change: Callable[[Tensor], Tensor]) -> Factor:
    return replace(factor, **{name: change(tensor) for name, tensor in factor.tensors.items()})  # pyright: ignore


def _sum(terms: list[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term if total.requires_grad or term.requires_grad else total.add_(term)
    return total
