"""The methods of ntkgp: the recipe for tables, its parts alone, and posteriors of networks trained beforehand.

None of them sees a test point before it forecasts; every choice is by marginal likelihood or held-out training points.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

import ntkgp
from benchmarks.scores import Forecast
from benchmarks.timing import querying
from benchmarks.uci import Split


def table(split: Split, *, seed: int, device: str = "cpu", **options: Any) -> Forecast:
    """``ntkgp.tune_table``, the default of the table estimators."""
    x, y, generator = _start(split, seed, device)
    tuned = ntkgp.tune_table(x, y, generator=generator, **options)
    return _forecast(split, tuned, tuned.fit(x, y))


def finite_table(split: Split, *, seed: int, device: str = "cpu", **options: Any) -> Forecast:
    """The same with networks of width 512: a smooth and a local one at their initial weights, and trained features."""
    return table(split, seed=seed, device=device, **{"width": 512, **options})


def at_initialisation(split: Split, *, seed: int, device: str = "cpu") -> Forecast:
    """The paper's architecture (two hidden layers of 512; SiLU) at its initial weights, noise, layers and inputs tuned."""
    x, y, generator = _start(split, seed, device)
    network = ntkgp.mlp(x.shape[1], width=512, activation=nn.SiLU(), generator=generator).to(x)
    tuned = ntkgp.tune(network, x, y, points=1000, hyper_prior=1.0, generator=generator)
    return _forecast(split, tuned, tuned.fit(x, y))


def post_hoc(split: Split, *, seed: int, device: str = "cpu", last_layer: bool = False, steps: int = 2000) -> Forecast:
    """A network of two hidden layers of 64 trained as usual; its own mean, prior variances and noise by marginal likelihood."""
    x, y, generator = _start(split, seed, device)
    network = _trained(x, y, steps, generator)
    parameters = ntkgp.networks.last_layer(network) if last_layer else None
    tuned = ntkgp.tune(
        network, x, y, prior_mean=ntkgp.network_mean, parameters=parameters, points=2000, hyper_prior=1.0, generator=generator
    )
    return _forecast(split, tuned, tuned.fit(x, y))


def post_hoc_last_layer(split: Split, *, seed: int, device: str = "cpu") -> Forecast:
    """The same with the tangent by the last layer alone."""
    return post_hoc(split, seed=seed, device=device, last_layer=True)


def trained_networks(split: Split, *, seed: int, device: str = "cpu") -> Forecast:
    """The paper itself: 64 copies of the network of `at_initialisation`, trained by gradient descent; for small sets."""
    x, y, generator = _start(split, seed, device)
    network = ntkgp.mlp(x.shape[1], width=512, activation=nn.SiLU(), generator=generator).to(x)
    tuned = ntkgp.tune(network, x, y, points=1000, hyper_prior=1.0, generator=generator)
    method = ntkgp.TrainedNetworks(rank=48, tail=15, svd=ntkgp.linalg.DenseSVD())
    return _forecast(split, tuned, tuned.fit(x, y, method=method, generator=generator))


def _start(split: Split, seed: int, device: str) -> tuple[Tensor, Tensor, torch.Generator]:
    return split.x.to(device), split.y.to(device), torch.Generator().manual_seed(seed)


def _trained(x: Tensor, y: Tensor, steps: int, generator: torch.Generator) -> nn.Module:
    torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))  # of nn.Linear's initial weights
    sizes = [x.shape[1], 64, 64]
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.SiLU())]
    network = nn.Sequential(*layers, nn.Linear(64, 1)).to(x)
    return ntkgp.warm_up(network, x, y, steps=[steps], generator=generator).module


def _forecast(split: Split, tuned: ntkgp.tuning.Tuned, posterior: ntkgp.posterior.Posterior) -> Forecast:
    device = posterior.problem.data.x.device
    with querying(str(device)):
        p = posterior.predict(split.x_test.to(device, split.x.dtype))
    settings = {"noise_var": float(torch.as_tensor(tuned.noise_var).mean()), "leave_one_out": tuned.leave_one_out,
                "log_marginal_likelihood": tuned.log_marginal_likelihood, "points": tuned.points}  # fmt: skip
    return split.forecast(p.mean, p.total_std, p.std, **settings)
