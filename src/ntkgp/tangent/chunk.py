"""A chunk of rows of J(x): layer factors where they are known, autodiff for the other parameters."""

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

    For linear layers with one position per sample, J v = Σ_layers g · (V a), Jᵀ u = Σ_layers (u g)ᵀ a, and the kernel is
    J J′ᵀ = Σ_layers (g g′ᵀ) ∘ (a a′ᵀ): no autodiff, every product is a matrix product.
    """

    factors: list[Factor]  # one per layer, in the order of the packing
    others: AutodiffRows | None  # the parameters without factors
    count: int  # n

    def matmat(self, v: Packed) -> Float[Tensor, "nC S"]:
        """J v; takes fewer points at a time if memory runs out."""

        def product(rows: slice) -> Tensor:
            piece = self.points(rows)
            terms = [factor.matmat(part) for factor, part in zip(piece.factors, v[:-1], strict=True)]
            return _sum([*terms, piece.others.matmat(v[-1])] if piece.others else terms)

        return _concatenated(by_halves(product, self.count))

    def accumulate(self, u: Float[Tensor, "nC S"], out: Packed) -> None:
        """Add Jᵀ u to `out`; takes fewer points at a time if memory runs out, per layer, so nothing is added twice."""
        outputs = len(u) // self.count
        for one, part in zip([*self.factors, *([self.others] if self.others else [])], out, strict=False):

            def product(rows: slice, one: Any = one, part: Tensor = part) -> None:
                one.points(rows).accumulate(u[outputs * rows.start : outputs * rows.stop], part)

            by_halves(product, self.count)

    def dense(self, shapes: list[torch.Size]) -> Packed:
        """The rows of J as packed vectors; `shapes` are the shapes of the packed layers."""
        entries = [factor.dense().unflatten(1, shape) for factor, shape in zip(self.factors, shapes, strict=True)]
        return [*entries, self.others.dense() if self.others else entries[0].new_zeros(len(entries[0]), 0)]

    def kernel(self, other: "Chunk") -> Float[Tensor, "nC mC"]:
        """J(x) J(x′)ᵀ; takes fewer points at a time if memory runs out."""

        def block(rows: slice) -> Tensor:
            piece = self if rows == slice(0, self.count) else self.points(rows)
            terms = [mine.kernel(theirs) for mine, theirs in zip(piece.factors, other.factors, strict=True)]
            return _sum([*terms, piece.others.kernel(other.others)] if piece.others and other.others else terms)

        return _concatenated(by_halves(block, self.count))

    def diag(self) -> Float[Tensor, "nC"]:
        """The diagonal of J(x) J(x)ᵀ."""
        terms = [factor.diag() for factor in self.factors]
        return _sum([*terms, self.others.diag()] if self.others else terms)

    def points(self, rows: slice) -> "Chunk":
        """The chunk of a slice of the points, as views."""
        others = self.others.points(rows) if self.others else None
        return Chunk([factor.points(rows) for factor in self.factors], others, rows.stop - rows.start)

    def to(self, dtype: torch.dtype) -> "Chunk":
        """The chunk with its factors in another dtype."""
        return Chunk([factor.to(dtype) for factor in self.factors], self.others, self.count)

    def room_for(self, points: int, others: AutodiffRows | None) -> "Chunk":
        """Allocate a chunk for `points` points with factors like these; :meth:`write` fills it.

        One allocation: storing factors one by one between freed intermediates would fragment the memory.
        """
        return Chunk([_mapped(factor, lambda t: t.new_empty(points, *t.shape[1:])) for factor in self.factors], others, points)

    def write(self, start: int, part: "Chunk") -> None:
        """Write the factors of `part` at rows `start`, `start` + 1, ...

        Through ``.data``, which autograd does not count as a change: its saved tensors are views of other rows, and those rows
        do not change.
        """
        for mine, theirs in zip(self.factors, part.factors, strict=True):
            for name, tensor in theirs.tensors.items():
                mine.tensors[name].data[start : start + part.count] = tensor.detach()

    def like(self, other: "Chunk") -> bool:
        """Whether both have the same kinds and shapes of factors, so that one buffer can store them."""
        return [_kind(factor) for factor in self.factors] == [_kind(factor) for factor in other.factors]

    def working_numbers(self, columns: int) -> int:
        """Numbers per point in the largest intermediate of a product with `columns` columns."""
        return max(part.working_numbers(columns) for part in (*self.factors, *([self.others] if self.others else [])))

    @property
    def kernel_operations(self) -> int:
        """Multiplications per pair of points in a kernel; autodiff rows cost their dot products."""
        others = self.others.outputs**2 * self.others.layout.size if self.others else 0
        return others + sum(factor.kernel_operations for factor in self.factors)

    @property
    def requires_grad(self) -> bool:
        """Whether the factors belong to a graph of autograd, so that a buffer cannot store them."""
        return any(tensor.requires_grad for factor in self.factors for tensor in factor.tensors.values())

    @property
    def bytes_per_point(self) -> int:
        """Bytes of the stored factors per point."""
        return sum(factor.bytes_per_point for factor in self.factors)


def _concatenated(parts: list[Tensor]) -> Tensor:
    """Concatenate the parts; no copy if there is only one."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _kind(factor: Factor) -> tuple[type[Factor], list[torch.Size]]:
    """The type of the factor and the shapes of its tensors at one point."""
    return type(factor), [tensor.shape[1:] for tensor in factor.tensors.values()]


def _mapped(factor: Factor, change: Callable[[Tensor], Tensor]) -> Factor:
    """Apply `change` to every tensor of the factor."""
    return replace(factor, **{name: change(tensor) for name, tensor in factor.tensors.items()})  # pyright: ignore


def _sum(terms: list[Tensor]) -> Tensor:
    """Add the terms, in place unless autograd needs them."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term if total.requires_grad or term.requires_grad else total.add_(term)
    return total
