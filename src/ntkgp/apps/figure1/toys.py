"""The toy problems of the figure."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Toy:
    """A one-dimensional regression problem: a function, the intervals of its observations, and the range of the queries."""

    truth: Callable[[Tensor], Tensor]
    observed: tuple[tuple[float, float], ...]  # each interval gets the same number of points
    queried: tuple[float, float] = (-4.0, 4.0)
    noise_std: float = 0.1
    points: int = 20

    def draw(self, generator: torch.Generator) -> tuple[Float[Tensor, "N 1"], Float[Tensor, "N"]]:
        """Training data: uniform inputs in each interval, noisy values of the function."""
        share = self.points // len(self.observed)
        parts = [torch.rand(share, generator=generator) * (high - low) + low for low, high in self.observed]
        x = torch.cat(parts).sort().values
        return x.unsqueeze(1), self.truth(x) + self.noise_std * torch.randn(len(x), generator=generator)


TOYS = {
    "paper": Toy(lambda x: x * torch.sin(x), observed=((-2.0, -2 / 3), (2 / 3, 2.0))),
    "sine": Toy(lambda x: torch.sin(2 * x), observed=((-3.0, 3.0),)),
    "step": Toy(lambda x: torch.sign(x), observed=((-3.0, -0.5), (0.5, 3.0))),
    "cubic": Toy(lambda x: 0.1 * x**3, observed=((-3.0, 0.0),), noise_std=0.3),
}
