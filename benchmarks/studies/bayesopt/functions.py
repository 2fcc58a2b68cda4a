"""Random functions, and test functions other than those of the study, on which candidate networks are compared."""

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from botorch.test_functions import Griewank, Levy, Michalewicz, Rosenbrock, SixHumpCamel, StyblinskiTang
from torch import Tensor, nn

Function = Callable[[Tensor], Tensor]


def random_fourier(dim: int, g: torch.Generator, matern: bool) -> Function:
    """A draw of a Gaussian process with a length scale for each input: squared exponential, or Matérn-5/2 (t frequencies)."""
    length = math.sqrt(dim) * 10 ** (torch.rand(dim, generator=g, dtype=torch.float64) * 0.8 - 0.9)
    frequencies = torch.randn(1000, dim, generator=g, dtype=torch.float64) / length
    if matern:
        frequencies *= (5 / torch.randn(1000, 5, generator=g, dtype=torch.float64).square().sum(1, keepdim=True)).sqrt()
    phase = 2 * math.pi * torch.rand(1000, generator=g, dtype=torch.float64)
    weights = torch.randn(1000, generator=g, dtype=torch.float64) * math.sqrt(2 / 1000)
    return lambda x: torch.cos(x @ frequencies.T + phase) @ weights


def random_network(dim: int, g: torch.Generator) -> Function:
    """A narrow network with tanh and large weights, not in the kernel regime."""
    sizes, layers = [dim, 12, 12, 1], []
    for fan_in, fan_out in pairwise(sizes):
        weight = 2.0 * torch.randn(fan_out, fan_in, generator=g, dtype=torch.float64) / math.sqrt(fan_in)
        layers.append((weight, torch.randn(fan_out, generator=g, dtype=torch.float64)))

    def function(x: Tensor) -> Tensor:
        h = 2 * x - 1
        for k, (weight, bias) in enumerate(layers):
            h = h @ weight.T + bias
            h = h.tanh() if k < 2 else h
        return h[:, 0]

    return function


def bowl(dim: int, g: torch.Generator) -> Function:
    """A skewed bowl with ripples, its bottom anywhere in the cube."""
    bottom, curve = torch.rand(2, dim, generator=g, dtype=torch.float64)
    return lambda x: ((0.3 + curve) * (x - bottom).square()).sum(1) + 0.05 * torch.cos(8 * (x - bottom)).sum(1)


def known(make: Callable[[int], nn.Module], dim: int) -> Function:
    """A published test function on the unit cube."""
    problem = make(dim).double()
    low, high = problem.bounds  # pyright: ignore[reportGeneralTypeIssues]
    return lambda x: problem(low + (high - low) * x)  # pyright: ignore[reportOperatorIssue]


def tasks(seeds: int) -> dict[str, tuple[int, int, Function]]:
    """Name → dimension, number of points, function."""
    found: dict[str, tuple[int, int, Function]] = {}
    for seed in range(seeds):
        g = torch.Generator().manual_seed(seed)
        for dim in (2, 5):
            for times in (4, 10):
                points = times * dim
                label = f"{dim}d {points} points, {seed}"
                found[f"squared exponential {label}"] = (dim, points, random_fourier(dim, g, matern=False))
                found[f"matern {label}"] = (dim, points, random_fourier(dim, g, matern=True))
                found[f"network {label}"] = (dim, points, random_network(dim, g))
                found[f"bowl {label}"] = (dim, points, bowl(dim, g))
        for name, make, dim in [
            ("levy", Levy, 4), ("styblinski-tang", StyblinskiTang, 3), ("rosenbrock", Rosenbrock, 4), ("griewank", Griewank, 3),
            ("michalewicz", Michalewicz, 2), ("six-hump camel", lambda _: SixHumpCamel(), 2),
        ]:  # fmt: skip
            found[f"{name} {dim}d {8 * dim} points, {seed}"] = (dim, 8 * dim, known(make, dim))  # pyright: ignore
    return found
