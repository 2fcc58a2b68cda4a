"""Functions drawn from the prior of an infinite network, by finite networks: evaluable anywhere."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jvp, vmap

from ntkgp._system.memory import rows_per_chunk
from ntkgp.networks.infinite.finite import finite_copy
from ntkgp.tangent.infinite.tangent import InfiniteTangent
from ntkgp.tangent.network import PureNetwork

POINTS = 512  # points of one call
WIDTH = 512  # of the finite networks: covariances over many functions are off by about 1/WIDTH


@dataclass(frozen=True)
class PriorFunctions:
    """S functions x ↦ J_s(x) z_s, each of the tangent of its own finite network with its own random weights.

    Averaged over networks their covariance is that of the infinite network up to O(1/width), although that of a single network
    is off by O(1/√width).
    """

    network: PureNetwork  # finite; only its structure matters
    weights: Float[Tensor, "S W"]
    directions: Float[Tensor, "S W"]

    @classmethod
    def draw(cls, tangent: InfiniteTangent, count: int, generator: torch.Generator | None) -> "PriorFunctions":
        """Draw networks and directions. Memory: 2·W numbers per function, W the weights of the finite network."""
        network = finite_network(tangent)
        values, place = (
            {**tangent.infinite.values, **tangent.network.settings},
            "cpu" if generator is None else generator.device,
        )

        def normal() -> Tensor:
            found = torch.randn(count, network.layout.size, generator=generator, device=place, dtype=network.dtype)
            return found.to(network.device)

        stds, priors = dict[str, Tensor](), dict[str, Tensor]()
        for name, shape in network.layout.shapes.items():
            stds[name] = values[f"{name}_std"].to(network.dtype).expand(shape)
            priors[name] = torch.full(shape, tangent.scales.get(f"{name}_std", 0.0), dtype=network.dtype, device=network.device)
        weights, directions = normal(), normal()
        return cls(network, weights * network.layout.join(stds), directions * network.layout.join(priors))

    def __call__(self, x: Tensor) -> Float[Tensor, "MC S"]:
        """Their values at x. Cost: S forward passes with a forward-mode derivative."""
        x, layout = self.network.cast(x), self.network.layout

        def one(weights: Tensor, direction: Tensor) -> Tensor:
            return jvp(lambda p: self.network(layout.split(p), x), (weights,), (direction,))[1]

        widest = max(shape.numel() for shape in layout.shapes.values()) ** 0.5
        together = rows_per_chunk(8 * 8 * int(widest) * max(1, len(x)))
        return vmap(one, chunk_size=together)(self.weights, self.directions).flatten(1).T

    def at_many(self, x: Tensor) -> Float[Tensor, "NC S"]:
        """The same for many points, some at a time."""
        return torch.cat([self(part) for part in x.split(POINTS)])

    def __getitem__(self, which: slice) -> "PriorFunctions":
        """Some of the functions."""
        return PriorFunctions(self.network, self.weights[which], self.directions[which])


def finite_network(tangent: InfiniteTangent) -> PureNetwork:
    """The finite network whose tangents stand for the infinite one."""
    return PureNetwork(finite_copy(tangent.network.module, WIDTH).requires_grad_(True))
