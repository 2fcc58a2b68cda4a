"""Bandit problems: all contexts and the rewards of all arms, drawn at once from a seed."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

import ntkgp


@dataclass(frozen=True)
class Problem:
    """T rounds: what every arm would pay, and what it pays on average."""

    contexts: Tensor  # (T, D)
    rewards: Tensor  # (T, k)
    expected: Tensor  # (T, k)

    def regret(self, arms: Tensor) -> Tensor:
        """Expected reward given up in each round by playing `arms`."""
        return self.expected.max(dim=1).values - self.expected.gather(1, arms.unsqueeze(1)).squeeze(1)

    def uniform(self, rounds: int) -> float:
        """Expected regret of playing arms at random, the first rounds together."""
        expected = self.expected[:rounds]
        return float((expected.max(dim=1, keepdim=True).values - expected).mean(dim=1).sum())


def wheel(delta: float, rounds: int, seed: int) -> Problem:
    """The wheel of Riquelme et al. (2018): arm 0 pays 1.2, the others 1.0, the quadrant's own 50 beyond δ; noise sd 0.01."""
    g = torch.Generator().manual_seed(seed)
    radius, angle = torch.rand(2, rounds, generator=g, dtype=torch.float64)
    x = radius.sqrt().unsqueeze(1) * torch.stack([(2 * math.pi * angle).cos(), (2 * math.pi * angle).sin()], dim=1)
    expected = torch.ones(rounds, 5, dtype=torch.float64)
    expected[:, 0] = 1.2
    quadrant = 1 + 2 * (x[:, 0] < 0).long() + (x[:, 1] < 0).long()
    far = x.norm(dim=1) > delta
    expected[far, quadrant[far]] = 50.0
    return Problem(x, expected + 0.01 * torch.randn(expected.shape, generator=g, dtype=torch.float64), expected)


def generated(rounds: int, seed: int) -> Problem:
    """Six arms whose expected rewards are random networks of three inputs with two hidden layers of tanh; noise sd 0.1."""
    g = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(rounds, 3, generator=g, dtype=torch.float64) - 1
    truth = ntkgp.mlp(3, 6, width=64, activation=torch.nn.Tanh(), output_scale=1.0, weight_std=1.5, generator=g).double()
    with torch.no_grad():
        expected = truth(3 * x)
    expected = (expected - expected.mean()) / expected.std()
    return Problem(x, expected + 0.1 * torch.randn(expected.shape, generator=g, dtype=torch.float64), expected)
