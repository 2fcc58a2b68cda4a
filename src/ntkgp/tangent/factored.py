"""J(x) by layer factors: no autodiff after the first pass, every product a matrix product.

With g and a of :mod:`ntkgp.tangent.factors`, for one position a sample,

    J v = Σ_layers g · (V a)        Jᵀ u = Σ_layers (u g)ᵀ a        J J′ᵀ = Σ_layers (g g′ᵀ) ∘ (a a′ᵀ).
"""

import itertools

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp.tangent.factors import Layer, LayerFactors, Outer
from ntkgp.tangent.functional import ParameterSpace
from ntkgp.tangent.jacobian import Jacobian, rows_per_chunk, spans


class FactoredJacobian(Jacobian):
    """J(x) over the parameters of factored layers, kept as factors in chunks of rows.

    Memory: N·Σ_layers T(C·o + i) numbers beside the result, and one chunk's intermediate. Cost: 2·N·C·P·S operations for J v
    and for Jᵀ u; 2·N·M·Σ_layers(C²o + i) for a kernel when T = 1, half of that when x′ = x.
    """

    def __init__(self, factors: LayerFactors, space: ParameterSpace, x: Tensor, outputs: int):
        self.space, self.shape = space, (len(x) * outputs, space.size)
        x = factors.network.cast(x)
        rows = _rows_per_chunk(factors.at(x[:1].detach(), outputs))
        self.chunks = [factors.at(part, outputs) for part in x.split(rows)]
        sizes = [len(part) * outputs for part in x.split(rows)]
        self._rows = [slice(end - size, end) for size, end in zip(sizes, itertools.accumulate(sizes), strict=True)]

    def matmat(self, v: Float[Tensor, "P S"]) -> Float[Tensor, "NC S"]:
        """J v: two matrix products a layer."""
        parts = self.space.split(v.T)
        packed = {layer: layer.pack(parts) for layer in self.chunks[0]}
        return torch.cat([self._chunk_matmat(chunk, packed) for chunk in self.chunks])

    def _chunk_matmat(self, chunk: dict[Layer, Outer], packed: dict[Layer, Tensor]) -> Tensor:
        columns = _column_spans(chunk, len(next(iter(packed.values()))))
        return torch.cat([sum_of([outer.matmat(packed[layer][cols]) for layer, outer in chunk.items()])
                          for cols in columns], dim=1)  # fmt: skip

    def rmatmat(self, u: Float[Tensor, "NC S"]) -> Float[Tensor, "P S"]:
        """Jᵀ u: two matrix products a layer."""
        out = u.new_zeros(u.shape[1], self.space.size)
        for chunk, rows in zip(self.chunks, self._rows, strict=True):
            for cols in _column_spans(chunk, u.shape[1]):
                views = self.space.split(out[cols])
                for layer, outer in chunk.items():
                    for name, part in layer.unpack(outer.rmatmat(u[rows, cols])).items():
                        views[name] += part
        return out.T

    def kernel(self, other: Jacobian | None = None) -> Float[Tensor, "NC MC"]:
        """J(x) J(x′)ᵀ, chunk against chunk; only half of the chunks when x′ = x."""
        if other is not None:
            assert isinstance(other, FactoredJacobian)
            return torch.cat([torch.cat([_block(left, right) for right in other.chunks], dim=1) for left in self.chunks])
        blocks = {(i, j): _block(self.chunks[i], self.chunks[j]) for i in range(len(self.chunks)) for j in range(i + 1)}
        rows = [[blocks[i, j] if j <= i else blocks[j, i].T for j in range(len(self.chunks))] for i in range(len(self.chunks))]
        return torch.cat([torch.cat(row, dim=1) for row in rows])

    def diag(self) -> Float[Tensor, "NC"]:
        """Squared norms of the rows of J, from the norms of the factors."""
        return torch.cat([sum_of([outer.diag() for outer in chunk.values()]) for chunk in self.chunks])


def sum_of(terms: list[Tensor]) -> Tensor:
    """The sum, without a starting zero."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _block(left: dict[Layer, Outer], right: dict[Layer, Outer]) -> Tensor:
    return sum_of([outer.kernel(right[layer]) for layer, outer in left.items()])


def _rows_per_chunk(sample: dict[Layer, Outer]) -> int:
    """Chunks of 1024 points, fewer where a layer's dense rows (needed when a sample has many positions) would be large."""
    dense = [outer.g.shape[1] * outer.g.shape[3] * outer.a.shape[2] * 8 for outer in sample.values() if outer.a.shape[1] > 1]
    return min([1024, *(rows_per_chunk(size, budget=256 * 2**20) for size in dense)])


def _column_spans(chunk: dict[Layer, Outer], columns: int) -> list[slice]:
    """Columns handled together: as many as keep the largest intermediate of a product at a few hundred MB."""
    numbers = max(outer.g.shape[0] * outer.width for outer in chunk.values())
    return spans(columns, rows_per_chunk(numbers * 8, budget=256 * 2**20))
