"""J(x), the NC×P derivative of the network's outputs with respect to its (scaled) parameters at θ0, as an operator."""

from collections.abc import Callable, Iterator
from itertools import chain

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.locks import cached_property
from ntkgp._system.memory import free_bytes
from ntkgp.tangent.chunk import Chunk
from ntkgp.tangent.growing_factors import GrowingChunk
from ntkgp.tangent.interfaces import JacobianRows, KernelRows
from ntkgp.tangent.layout import Packing

MAX_COLUMNS = 1024  # columns per product: enough for efficient matrix products
TILE_POINTS = 256  # points per kernel block: the block fits the cache
PIECE_BYTES = 24 * 2**20  # largest intermediate of a product on a CPU: malloc maps larger blocks anew for every product
GRAM_COLUMNS = 512  # columns of JᵀJ per product: enough to be efficient, few enough to skip nearly half of JᵀJ
Source = Callable[[], Iterator[Chunk]]


class Jacobian(KernelRows, JacobianRows):
    """J(x) by products over chunks of points; nothing of size N×P is ever formed.

    Args:
        packing: the packing of the parameters.
        sources: functions that return the rows of J in the order of the points, every time they are called; each may store
            the rows or compute them again.
        points: N.
        outputs: C.
    """

    def __init__(self, packing: Packing, sources: list[Source], points: int, outputs: int):
        self._packing, self._sources, self.points, self.outputs = packing, sources, points, outputs
        self.shape = (points * outputs, packing.layout.size)

    def extended(self, more: "Jacobian") -> "Jacobian":
        """Append the rows of `more`. Cost: the new rows; the existing ones are not touched.

        Appended rows share one growing buffer, even if they are appended one at a time.
        """
        *before, last = self._sources
        if (
            before
            and isinstance(last, GrowingChunk)
            and len(more._sources) == 1
            and isinstance(new := more._sources[0], GrowingChunk)
            and last.memory.like(new.memory)
        ):
            sources = [*before, last.extended(new.chunk)]
        else:
            sources = [*self._sources, *more._sources]
        return Jacobian(self._packing, sources, self.points + more.points, self.outputs)

    def _chunks(self) -> Iterator[Chunk]:
        """All rows, chunk by chunk."""
        return chain.from_iterable(source() for source in self._sources)

    def matmat(self, v: Float[Tensor, "P S"]) -> Float[Tensor, "NC S"]:
        """J v. Cost: 2·N·C·P·S operations by factors; memory one working set and the result."""

        def product(v: Tensor) -> Tensor:
            packed = self._packing.pack(v)
            return torch.cat([piece.matmat(packed) for piece, _ in self._pieces(v)])

        return _by_columns(product, v, self.shape[0])

    def rmatmat(self, u: Float[Tensor, "NC S"]) -> Float[Tensor, "P S"]:
        """Jᵀ u. Cost: 2·N·C·P·S operations by factors; memory one working set and 2·P·S numbers."""

        def product(u: Tensor) -> Tensor:
            out = self._packing.zeros(u.shape[1], u)
            for piece, rows in self._pieces(u):
                piece.accumulate(u[rows].contiguous(), out)
            return self._packing.unpack(out)

        return _by_columns(product, u, self.shape[1])

    def normal(self, v: Float[Tensor, "P S"], weights: Float[Tensor, "NC"]) -> Float[Tensor, "P S"]:
        """Jᵀ diag(weights) J v, in one pass and without an N×S intermediate. Cost: 4·N·C·P·S operations by factors."""

        def product(v: Tensor) -> Tensor:
            packed, out = self._packing.pack(v), self._packing.zeros(v.shape[1], v)
            for piece, rows in self._pieces(v):
                piece.accumulate(piece.matmat(packed).mul_(weights[rows].unsqueeze(1)), out)
            return self._packing.unpack(out)

        return _by_columns(product, v, self.shape[1])

    def add_normal_matrix(
        self,
        out: Float[Tensor, "P P"],
        weights: Float[Tensor, "NC"],
        skip: int = 0,
        done: Callable[[int], object] | None = None,
    ) -> None:
        """Add Jᵀ diag(weights) J to the lower triangle of `out`, in one pass.

        Cost: N·C·P² operations (symmetry saves half); memory one working set.

        Args:
            out: the sum so far, in the dtype of the weights.
            weights: weight of each row.
            skip: number of points at the beginning that `out` already contains.
            done: called with the number of points after each block, when `out` contains them.
        """
        roots, start = weights.sqrt().unsqueeze(1), 0
        for chunk in self._chunks():
            piece = chunk.points(slice(min(max(0, skip - start), chunk.count), chunk.count))
            start += chunk.count - piece.count
            for part in _split(piece, self._dense_points(weights)) if piece.count else []:
                here = slice(start * self.outputs, (start + part.count) * self.outputs)
                rows = self._dense(part, weights.dtype) * roots[here]
                for left in range(0, out.shape[1], GRAM_COLUMNS):
                    columns = slice(left, left + GRAM_COLUMNS)
                    out[left:, columns].addmm_(rows[:, left:].T, rows[:, columns])
                start += part.count
                if done is not None:
                    done(part.count)

    def dense(self) -> Float[Tensor, "NC P"]:
        """All entries of J, for a few points; differentiable in them. Memory: two copies of the result."""
        return torch.cat([self._dense(chunk) for chunk in self._chunks()])

    def dense_blocks(self, like: Tensor) -> Iterator[tuple[slice, Float[Tensor, "nC P"]]]:
        """Yield the entries of J in the dtype of `like`, and the rows they belong to: as many as one working set holds."""
        start = 0
        for part in (part for chunk in self._chunks() for part in _split(chunk, self._dense_points(like))):
            rows = self._dense(part, like.dtype)
            yield slice(start, start + len(rows)), rows
            start += len(rows)

    def _dense_points(self, like: Tensor) -> int:
        """Points whose rows fit one working set in two orders, beside a wider copy of their factors."""
        return max(1, working_bytes(like.device) // (3 * self.outputs * self.shape[1] * like.element_size()))

    def _dense(self, chunk: Chunk, dtype: torch.dtype | None = None) -> Float[Tensor, "nC P"]:
        """The entries of the rows of a chunk, in the order of flat vectors."""
        chunk = chunk if dtype is None else chunk.to(dtype)
        entries = chunk.dense(self._packed_shapes)
        return self._packing.unpack(entries if dtype is None else [part.to(dtype) for part in entries]).T

    @cached_property
    def _packed_shapes(self) -> list[torch.Size]:
        return [part.shape[1:] for part in self._packing.zeros(1, torch.empty(0))[:-1]]

    def gram(self) -> Float[Tensor, "NC NC"]:
        """J(x) J(x)ᵀ, block by block; symmetry saves half of the blocks.

        Cost: N²·Σ_layers(C²o + i) operations for linear layers; memory the result and three blocks of 256 points.
        """
        tiles = self._tiles()
        rows = _consecutive([tile.count * self.outputs for tile in tiles])
        out: Tensor | None = None
        for i, mine in enumerate(tiles):
            for j, theirs in enumerate(tiles[: i + 1]):
                block = mine.kernel(theirs)
                out = block.new_empty(self.shape[0], self.shape[0]) if out is None else out
                out[rows[i], rows[j]] = block
                if i != j:
                    out[rows[j], rows[i]] = block.T
        if out is None:
            raise ValueError("expected at least one point, got none")
        return out

    def cross(self, other: "Jacobian") -> Float[Tensor, "NC MC"]:
        """J(x) J(x′)ᵀ, block by block. Cost: 2·N·M·Σ_layers(C²o + i) operations for linear layers."""
        right = other._tiles()
        return torch.cat([torch.cat([mine.kernel(theirs) for theirs in right], dim=1) for mine in self._tiles()])

    def diag(self) -> Float[Tensor, "NC"]:
        """The diagonal of J(x) J(x)ᵀ, from the norms of the factors."""
        return torch.cat([tile.diag() for chunk in self._chunks() for tile in _split(chunk, TILE_POINTS)])

    def _tiles(self) -> list[Chunk]:
        """All rows, in chunks of at most TILE_POINTS points."""
        return [tile for chunk in self._chunks() for tile in _split(chunk, TILE_POINTS)]

    def _pieces(self, vectors: Tensor) -> Iterator[tuple[Chunk, slice]]:
        """Yield chunks small enough for the working set of a product, and the rows that each covers.

        Factors may be stored in half the precision of the vectors; each piece is converted to the vectors' dtype.
        """
        budget, start = working_bytes(vectors.device), 0
        budget = budget if vectors.device.type == "cuda" else min(budget, PIECE_BYTES)
        for chunk in self._chunks():
            # Memory for the intermediates, and for a wider copy of the factors.
            per_point = chunk.working_numbers(vectors.shape[1]) * vectors.element_size() + 2 * chunk.bytes_per_point
            for piece in _split(chunk, max(1, int(budget // max(per_point, 1)))):
                stop = start + piece.count * self.outputs
                yield piece.to(vectors.dtype), slice(start, stop)
                start = stop


def working_bytes(device: torch.device) -> int:
    """Bytes for the intermediates of one product: enough for efficient arithmetic, little compared to the device's memory."""
    most = 2 * 2**30 if device.type == "cuda" else 128 * 2**20
    return max(2**20, min(most, free_bytes(device) // 16))


def _split(chunk: Chunk, size: int) -> list[Chunk]:
    """Split a chunk into chunks of at most `size` points."""
    if chunk.count <= size:
        return [chunk]
    return [chunk.points(slice(start, min(start + size, chunk.count))) for start in range(0, chunk.count, size)]


def _consecutive(sizes: list[int]) -> list[slice]:
    """Consecutive slices of the given sizes."""
    ends = torch.tensor(sizes).cumsum(0).tolist()
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _by_columns(product: Callable[[Tensor], Tensor], v: Tensor, rows: int) -> Tensor:
    """Apply `product` to at most MAX_COLUMNS columns at a time."""
    if v.shape[1] == 0:
        return v.new_zeros(rows, 0)
    if v.shape[1] <= MAX_COLUMNS:
        return product(v)
    return torch.cat([product(part) for part in v.split(MAX_COLUMNS, dim=1)], dim=1)
