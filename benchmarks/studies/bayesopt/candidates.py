"""The candidate networks for Bayesian optimisation, each with the options it is tuned with."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import ntkgp

Build = Callable[[int, torch.Generator], nn.Module]  # from the dimension and a generator


class Centred(nn.Module):
    """The unit cube as [-1, 1]."""

    def forward(self, x: Tensor) -> Tensor:
        """2x - 1."""
        return 2 * x - 1


def _network(inputs: nn.Module, features: int, g: torch.Generator, activation: nn.Module, depth: int = 2, width: int = 256,
             scale: float = 1.0, bias: float = 1.0) -> nn.Module:  # fmt: skip
    """A network behind a map of its inputs, which are scaled."""
    body = ntkgp.mlp(features, width=width, depth=depth, activation=activation, output_scale=1.0, bias_std=bias, generator=g)
    return nn.Sequential(inputs, ntkgp.networks.InputScales(torch.full((features,), scale)), body).double()


def plain(activation: nn.Module, **settings: Any) -> Build:
    """A network of the centred inputs."""
    return lambda dim, g: _network(Centred(), dim, g, activation, **settings)


def circles(activation: nn.Module, **settings: Any) -> Build:
    """A network of the paper's trigonometric inputs: with one scale for each input its kernel is stationary."""
    return lambda dim, g: _network(ntkgp.networks.TrigonometricInputs(0.0, 1.0), 2 * dim, g, activation, **settings)


def sum_of(first: Build, second: Build) -> Build:
    """The sum of two networks."""
    return lambda dim, g: ntkgp.networks.SumOfNetworks(first(dim, g), second(dim, g))


SINE, SILU, TANH = ntkgp.networks.Sine(), nn.SiLU(), nn.Tanh()
DEEP_1: dict[str, Any] = {"depth": 1, "width": 1024}
SINE_1, SINE_2, SINE_3 = (plain(SINE, **DEEP_1, bias=3.0, scale=scale) for scale in (1.0, 2.0, 3.0))
BOTH = sum_of(circles(SILU), circles(SINE, scale=2.0))
CANDIDATES: dict[str, tuple[Build, dict[str, Any]]] = {
    "silu": (plain(SILU), {}),
    "silu, scale 2": (plain(SILU, scale=2.0), {}),
    "silu, prior 1.7": (plain(SILU), {"hyper_prior": 1.7}),
    "silu, 3 deep": (plain(SILU, depth=3), {}),
    "tanh": (plain(TANH), {}),
    "softplus": (plain(nn.Softplus(beta=3.0)), {}),
    "silu on circles": (circles(SILU), {}),
    "sine on circles": (circles(SINE), {}),
    "sine, 1 deep": (SINE_1, {}),
    "sine, 1 deep, prior 1.7": (SINE_1, {"hyper_prior": 1.7}),
    "sine, 1 deep, scale 2": (SINE_2, {}),
    "sine, 1 deep, scale 2, prior 1.7": (SINE_2, {"hyper_prior": 1.7}),
    "sine, 1 deep, scale 2, 4 starts": (SINE_2, {"starts": 4}),
    "sine, 1 deep, scale 3": (SINE_3, {}),
    "sine, 1 deep, scale 2, prior 0.6": (SINE_2, {"hyper_prior": 0.6}),
    "sine": (plain(SINE, bias=3.0), {}),
    "sine, little bias": (plain(SINE), {}),
    "silu + sine": (sum_of(plain(SILU), SINE_2), {}),
    "sine on circles, 4 starts": (circles(SINE), {"starts": 4}),
    "sine on circles, prior 0.6": (circles(SINE), {"hyper_prior": 0.6}),
    "sine on circles, prior 1.7": (circles(SINE), {"hyper_prior": 1.7}),
    "sine on circles, scale 2": (circles(SINE, scale=2.0), {}),
    "sine on circles, bias 3": (circles(SINE, bias=3.0), {}),
    "sine on circles, width 512": (circles(SINE, width=512), {}),
    "sine on circles, 1 deep": (circles(SINE, **DEEP_1), {}),
    "tanh on circles": (circles(TANH), {}),
    "silu + sine, on circles": (BOTH, {}),
    "silu + sine, on circles, 1 deep": (sum_of(circles(SILU), circles(SINE, **DEEP_1, scale=2.0)), {}),
    "silu + sine, on circles, prior 0.6": (BOTH, {"hyper_prior": 0.6}),
    "silu + sine, on circles, prior 1.7": (BOTH, {"hyper_prior": 1.7}),
    "silu + sine, on circles, 4 starts": (BOTH, {"starts": 4}),
    "silu + sine, on circles, 100 steps": (BOTH, {"steps": 100}),
    "silu + sine, on circles, no prior": (BOTH, {"hyper_prior": None}),
}
