"""The kernel of an infinite network at some points."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.threads import for_each
from ntkgp.networks.infinite.network import TILE_POINTS, InfiniteNetwork, tangent_of
from ntkgp.networks.infinite.steps import Priors, Values
from ntkgp.tangent.interfaces import KernelRows

Tile = tuple[slice, slice]  # rows and columns
R = TypeVar("R")


class InfiniteRows(KernelRows):
    """Θ(x, ·) ⊗ I_C at some points, tile by tile; differentiable in x.

    Args:
        network: the infinite network.
        x: N points.
        priors: prior variance of each parameter that enters the tangent.
        values: settings of the network that differ from its own.
    """

    def __init__(self, network: InfiniteNetwork, x: Tensor, priors: Priors, values: Values):
        self.network, self.x, self.priors, self.values = network, x, priors, values
        self.points, self.outputs = len(x), network.outputs

    def extended(self, more: "InfiniteRows") -> "InfiniteRows":
        """Append the points of `more`."""
        return InfiniteRows(self.network, torch.cat([self.x, more.x]), self.priors, self.values)

    def gram(self) -> Float[Tensor, "NC NC"]:
        """K(x, x). Cost: half of N² values of the recursion; memory the result and some tiles of 256 points."""
        if not self.points:
            raise ValueError("expected at least one point, got none")
        return self._outputs(self.shared_gram())

    def cross(self, other: "InfiniteRows") -> Float[Tensor, "NC MC"]:
        """K(x, x′). Cost: N·M values of the recursion."""
        right = other.x.split(TILE_POINTS)
        if torch.is_grad_enabled() and (self.x.requires_grad or other.x.requires_grad):
            return self._outputs(
                torch.cat([torch.cat([self._tile(mine, theirs) for theirs in right], 1) for mine in self._tiles()])
            )
        out = self.x.new_empty(self.points, other.points)

        def write(tile: Tile) -> None:
            rows, columns = tile
            out[rows, columns] = self._tile(self.x[rows], other.x[columns])

        each_tile(write, all_tiles(self.points, other.points), self.x)
        return self._outputs(out)

    def diag(self) -> Float[Tensor, "NC"]:
        """The diagonal of K(x, x)."""
        found = tangent_of(self.network.diagonal(self.x, self.priors, self.values), self.x.new_zeros(len(self.x)))
        return found.repeat_interleave(self.outputs)

    def shared_gram(self) -> Float[Tensor, "N N"]:
        """Θ(x, x), which all outputs share."""
        out = self.x.new_empty(self.points, self.points)
        if self.x.requires_grad and torch.is_grad_enabled():
            tiles = list(self._tiles())
            return torch.cat([torch.cat([self._tile(mine, theirs) for theirs in tiles], 1) for mine in tiles])

        def write(tile: Tile) -> None:
            rows, columns = tile
            block = self._tile(self.x[rows], self.x[columns])
            if rows == columns:  # rounding would leave it a little asymmetric
                block = block.tril() + block.tril(-1).T
            out[rows, columns], out[columns, rows] = block, block.T

        each_tile(write, lower_tiles(self.points), self.x)
        return out

    def _tiles(self) -> tuple[Tensor, ...]:
        return self.x.split(TILE_POINTS)

    def _tile(self, x: Tensor, other: Tensor) -> Float[Tensor, "n m"]:
        return tangent_of(self.network.block(x, other, self.priors, self.values), x.new_zeros(len(x), len(other)))

    def _outputs(self, shared: Float[Tensor, "N M"]) -> Float[Tensor, "NC MC"]:
        """Θ ⊗ I_C, point-major."""
        return (
            shared
            if self.outputs == 1
            else torch.kron(shared, torch.eye(self.outputs, dtype=shared.dtype, device=shared.device))
        )


def all_tiles(points: int, others: int) -> list[Tile]:
    """The tiles of a whole matrix."""
    return [(rows, columns) for rows in _parts(points) for columns in _parts(others)]


def lower_tiles(points: int) -> list[Tile]:
    """The tiles on and below the diagonal."""
    parts = _parts(points)
    return [(rows, columns) for k, rows in enumerate(parts) for columns in parts[: k + 1]]


def each_tile(function: Callable[[Tile], R], tiles: Sequence[Tile], like: Tensor) -> list[R]:
    """The function of each tile; on a CPU one thread per tile, whose operations are too small for several."""
    return for_each(function, tiles) if like.device.type == "cpu" else [function(tile) for tile in tiles]


def _parts(points: int) -> list[slice]:
    return [slice(start, min(start + TILE_POINTS, points)) for start in range(0, points, TILE_POINTS)]
