"""The library's bandit on the benchmark's problems, with settings chosen on pilot seeds that are not reported."""

import math

import torch
from torch import nn

import ntkgp
from ntkgp.bandits import UCB, Bandit, Thompson

BETA = {"wheel": 0.25, "generated": 1.0}


def scaled(network: nn.Module, std: float, contexts: torch.Tensor) -> nn.Module:
    """The network times a constant, so that its prior has this standard deviation, averaged over the contexts."""
    size = math.sqrt(float(ntkgp.kernel_diag(network, contexts).mean()))
    return nn.Sequential(network, ntkgp.networks.InputScales(torch.tensor([std / size], dtype=torch.float64)))


def relu(features: int, scale: float, depth: int, width: int, generator: torch.Generator) -> nn.Module:
    """A ReLU network whose inputs are scaled."""
    network = ntkgp.mlp(features, width=width, depth=depth, activation=nn.ReLU(), output_scale=1.0, generator=generator)
    return nn.Sequential(ntkgp.networks.InputScales(torch.full((features,), scale)), network).double()


def wheel_bandit(explore: UCB | Thompson, generator: torch.Generator) -> Bandit:
    """One sum of two networks an arm: one of large inputs, which sees directions, and one that sees places.

    Prior standard deviation 10 each, since rewards up to some tens must be thought possible; noise variance 10, far above
    the true 0.0001, since a Gaussian process must not try to follow a jump exactly.
    """
    some = torch.rand(400, 2, generator=generator, dtype=torch.float64) * 2 - 1
    some = some[some.norm(dim=1) < 1]
    arms = [
        ntkgp.networks.SumOfNetworks(
            scaled(relu(2, 16.0, 1, 512, generator), 10.0, some), scaled(relu(2, 2.0, 2, 256, generator), 10.0, some)
        )
        for _ in range(5)
    ]
    return Bandit(arms, explore, noise_var=10.0, skip=0.2, generator=generator)


def generated_bandit(explore: UCB | Thompson, generator: torch.Generator) -> Bandit:
    """One network an arm, prior standard deviation 1, and the true noise."""
    some = torch.rand(400, 3, generator=generator, dtype=torch.float64) * 2 - 1
    arms = [scaled(relu(3, 2.0, 2, 256, generator), 1.0, some) for _ in range(6)]
    return Bandit(arms, explore, noise_var=0.01, skip=0.2, generator=generator)
