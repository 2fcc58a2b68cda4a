"""The kernel of an infinite network at some points."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp.networks.infinite.network import TILE_POINTS, InfiniteNetwork, tangent_of
from ntkgp.networks.infinite.steps import Priors, Values
from ntkgp.tangent.interfaces import KernelRows


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
        return self._outputs(
            torch.cat([torch.cat([self._tile(mine, theirs) for theirs in right], 1) for mine in self._tiles()])
        )

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
        for rows, columns in lower_tiles(self.points):
            block = self._tile(self.x[rows], self.x[columns])
            if rows == columns:  # rounding would leave it a little asymmetric
                block = block.tril() + block.tril(-1).T
            out[rows, columns], out[columns, rows] = block, block.T
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


def lower_tiles(points: int) -> Iterator[tuple[slice, slice]]:
    """The tiles on and below the diagonal."""
    starts = range(0, points, TILE_POINTS)
    for start in starts:
        for other in range(0, start + 1, TILE_POINTS):
            yield slice(start, min(start + TILE_POINTS, points)), slice(other, min(other + TILE_POINTS, points))
