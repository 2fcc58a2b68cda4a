"""Which network for Bayesian optimisation: candidates compared on random functions that are not the benchmark's.

Each candidate is tuned on a few Sobol points of random functions, and of test functions other than those of
``benchmarks.bayesopt``; on 500 other points its error and the negative log density of the function are measured, in standard
deviations of the data. The default of :class:`ntkgp.botorch.NTKGPModel` is what came out.

python -m benchmarks.bayesopt_network                an hour; what network.json holds already is not repeated
python -m benchmarks.bayesopt_network --report       the table
"""

import argparse
import math
import statistics
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.test_functions import Griewank, Levy, Michalewicz, Rosenbrock, SixHumpCamel, StyblinskiTang
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor, nn

import ntkgp
from benchmarks.common import RESULTS, read, save

Function = Callable[[Tensor], Tensor]
Row = dict[str, Any]
FOLDER = RESULTS / "bayesopt"


class Centred(nn.Module):
    """The unit cube as [-1, 1]."""

    def forward(self, x: Tensor) -> Tensor:
        """2x - 1."""
        return 2 * x - 1


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


def network(
    dim: int, g: torch.Generator, activation: nn.Module, depth: int = 2, width: int = 256, scale: float = 1.0, bias: float = 1.0
) -> nn.Module:
    """One candidate, its inputs scaled."""
    body = ntkgp.mlp(dim, width=width, depth=depth, activation=activation, output_scale=1.0, bias_std=bias, generator=g)
    return nn.Sequential(Centred(), ntkgp.InputScales(torch.full((dim,), scale)), body).double()


def on_circles(
    dim: int, g: torch.Generator, activation: nn.Module, depth: int = 2, width: int = 256, scale: float = 1.0, bias: float = 1.0
) -> nn.Module:
    """One candidate behind the paper's trigonometric inputs: with one scale for each input its kernel is stationary."""
    body = ntkgp.mlp(2 * dim, width=width, depth=depth, activation=activation, output_scale=1.0, bias_std=bias, generator=g)
    return nn.Sequential(ntkgp.TrigonometricInputs(0.0, 1.0), ntkgp.InputScales(torch.full((2 * dim,), scale)), body).double()


SINE, SILU, TANH = ntkgp.Sine(), nn.SiLU(), nn.Tanh()
CANDIDATES: dict[str, tuple[Callable[[int, torch.Generator], nn.Module], dict[str, object]]] = {
    "silu": (lambda d, g: network(d, g, SILU), {}),
    "silu, scale 2": (lambda d, g: network(d, g, SILU, scale=2.0), {}),
    "silu, prior 1.7": (lambda d, g: network(d, g, SILU), {"hyper_prior": 1.7}),
    "silu, 3 deep": (lambda d, g: network(d, g, SILU, depth=3), {}),
    "tanh": (lambda d, g: network(d, g, TANH), {}),
    "softplus": (lambda d, g: network(d, g, nn.Softplus(beta=3.0)), {}),
    "silu on circles": (lambda d, g: on_circles(d, g, SILU), {}),
    "sine on circles": (lambda d, g: on_circles(d, g, SINE), {}),
    "sine, 1 deep": (lambda d, g: network(d, g, SINE, depth=1, width=1024, bias=3.0), {}),
    "sine, 1 deep, prior 1.7": (lambda d, g: network(d, g, SINE, depth=1, width=1024, bias=3.0), {"hyper_prior": 1.7}),
    "sine, 1 deep, scale 2": (lambda d, g: network(d, g, SINE, depth=1, width=1024, bias=3.0, scale=2.0), {}),
    "sine, 1 deep, scale 2, prior 1.7": (
        lambda d, g: network(d, g, SINE, depth=1, width=1024, bias=3.0, scale=2.0), {"hyper_prior": 1.7}
    ),
    "sine, 1 deep, scale 2, 4 starts": (
        lambda d, g: network(d, g, SINE, depth=1, width=1024, bias=3.0, scale=2.0), {"starts": 4}
    ),
    "sine, 1 deep, scale 3": (lambda d, g: network(d, g, SINE, depth=1, width=1024, bias=3.0, scale=3.0), {}),
    "sine, 1 deep, scale 2, prior 0.6": (
        lambda d, g: network(d, g, SINE, depth=1, width=1024, bias=3.0, scale=2.0), {"hyper_prior": 0.6}
    ),
    "sine": (lambda d, g: network(d, g, SINE, bias=3.0), {}),
    "sine, little bias": (lambda d, g: network(d, g, SINE), {}),
    "sine on circles, 4 starts": (lambda d, g: on_circles(d, g, SINE), {"starts": 4}),
    "sine on circles, prior 0.6": (lambda d, g: on_circles(d, g, SINE), {"hyper_prior": 0.6}),
    "sine on circles, prior 1.7": (lambda d, g: on_circles(d, g, SINE), {"hyper_prior": 1.7}),
    "sine on circles, scale 2": (lambda d, g: on_circles(d, g, SINE, scale=2.0), {}),
    "sine on circles, bias 3": (lambda d, g: on_circles(d, g, SINE, bias=3.0), {}),
    "sine on circles, width 512": (lambda d, g: on_circles(d, g, SINE, width=512), {}),
    "sine on circles, 1 deep": (lambda d, g: on_circles(d, g, SINE, depth=1, width=1024), {}),
    "tanh on circles": (lambda d, g: on_circles(d, g, TANH), {}),
    "silu + sine, on circles": (
        lambda d, g: ntkgp.SumOfNetworks(on_circles(d, g, SILU), on_circles(d, g, SINE, scale=2.0)), {}
    ),
    "silu + sine, on circles, 4 starts": (
        lambda d, g: ntkgp.SumOfNetworks(on_circles(d, g, SILU), on_circles(d, g, SINE, scale=2.0)), {"starts": 4}
    ),
    "silu + sine, on circles, 100 steps": (
        lambda d, g: ntkgp.SumOfNetworks(on_circles(d, g, SILU), on_circles(d, g, SINE, scale=2.0)), {"steps": 100}
    ),
    "silu + sine, on circles, no prior": (
        lambda d, g: ntkgp.SumOfNetworks(on_circles(d, g, SILU), on_circles(d, g, SINE, scale=2.0)), {"hyper_prior": None}
    ),
    "silu + sine, on circles, prior 0.6": (
        lambda d, g: ntkgp.SumOfNetworks(on_circles(d, g, SILU), on_circles(d, g, SINE, scale=2.0)), {"hyper_prior": 0.6}
    ),
    "silu + sine, on circles, prior 1.7": (
        lambda d, g: ntkgp.SumOfNetworks(on_circles(d, g, SILU), on_circles(d, g, SINE, scale=2.0)), {"hyper_prior": 1.7}
    ),
    "silu + sine, on circles, 1 deep": (
        lambda d, g: ntkgp.SumOfNetworks(on_circles(d, g, SILU), on_circles(d, g, SINE, depth=1, width=1024, scale=2.0)), {}
    ),
    "silu + sine": (
        lambda d, g: ntkgp.SumOfNetworks(network(d, g, SILU), network(d, g, SINE, depth=1, width=1024, bias=3.0, scale=2.0)), {}
    ),
}  # fmt: skip


def score(mean: Tensor, variance: Tensor, truth: Tensor) -> dict[str, float]:
    """Error and negative log density, in the units of the standardised data."""
    variance = variance.clamp_min(1e-8)
    density = 0.5 * ((truth - mean).square() / variance + variance.log() + math.log(2 * math.pi))
    return {"rmse": float((truth - mean).square().mean().sqrt()), "nlpd": float(density.mean())}


def measure(name: str, dim: int, points: int, function: Function, seed: int) -> dict[str, float]:
    """One candidate on one function; "gp" is BoTorch's own model."""
    bounds = torch.tensor([[0.0] * dim, [1.0] * dim], dtype=torch.float64)
    x = draw_sobol_samples(bounds, 1, points, seed=seed)[0]
    test = torch.rand(500, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    y, truth = function(x), function(test)
    shift, unit = y.mean(), y.std()
    y, truth = (y - shift) / unit, (truth - shift) / unit
    start = time.perf_counter()
    if name == "gp":
        model = SingleTaskGP(x, y.unsqueeze(1), outcome_transform=None)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        seconds = time.perf_counter() - start
        with torch.no_grad():
            p = model.posterior(test)
        return {**score(p.mean[:, 0], p.variance[:, 0], truth), "seconds": seconds}
    build, options = CANDIDATES[name]
    g = torch.Generator().manual_seed(seed)
    options = {"starts": 2, "steps": 60, "hyper_prior": 1.0, **options}
    tuned = ntkgp.tune(build(dim, g), x, y, **options)  # pyright: ignore[reportArgumentType]
    seconds = time.perf_counter() - start
    p, wide = tuned.fit(x, y).predict(test), tuned.widened().fit(x, y).predict(test)
    widened = score(wide.mean, wide.variance, truth)["nlpd"]
    return {**score(p.mean, p.variance, truth), "nlpd_widened": widened, "seconds": seconds}


def table(rows: list[Row]) -> None:
    """Means over the functions that every candidate has seen; errors as a ratio to BoTorch's model."""
    names = list(dict.fromkeys(row["candidate"] for row in rows))
    found = {(row["task"], row["candidate"]): row for row in rows}
    common = [task for task in dict.fromkeys(row["task"] for row in rows) if all((task, name) in found for name in names)]
    print(f"{len(common)} functions\n\n| network | negative log density | widened | error / that of SingleTaskGP | s to tune |")
    print("|---|---|---|---|---|")
    for name in names:
        mine, reference = ([found[task, one] for task in common] for one in (name, "gp"))
        ratio = statistics.geometric_mean(a["rmse"] / b["rmse"] for a, b in zip(mine, reference, strict=True))
        nlpd, wide = (statistics.mean(row.get(key, row["nlpd"]) for row in mine) for key in ("nlpd", "nlpd_widened"))
        print(f"| {name} | {nlpd:.2f} | {wide:.2f} | {ratio:.2f} | {statistics.mean(row['seconds'] for row in mine):.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", nargs="*", help="names of candidates, all when left out")
    parser.add_argument("--report", action="store_true", help="only print the table of what is there")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: list[Row] = read("network", FOLDER)["rows"] if (FOLDER / "network.json").exists() else []
    if not chosen.report:
        done = {(row["task"], row["candidate"]) for row in rows}
        for task, (dim, points, function) in tasks(chosen.seeds).items():
            missing = [name for name in chosen.only or ["gp", *CANDIDATES] if (task, name) not in done]
            seed = int(task.rsplit(" ", 1)[1])
            rows += [{"task": task, "candidate": name, **measure(name, dim, points, function, seed)} for name in missing]
            save("network", {"rows": rows}, FOLDER)
    table(rows)


if __name__ == "__main__":
    main()
