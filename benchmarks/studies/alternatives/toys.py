"""Three toys and every method on them: what it predicts, what it costs, how far it is from what it approximates.

* The paper's toy (``ntkgp.figure1``): 20 points of x sin x, inputs as the paper's trigonometric features, for all methods.
* A gap: 30 points of sin 3x in two clusters, nothing between them.
* A plane: 60 points of sin(2 x₁) cos x₂ in two clusters and on an arc between them.

The noise (std 0.1) is known to all but the ensemble, which learns it, and Laplace, which has noise and prior precision by its
marginal likelihood as in the tables. Other settings are the authors' defaults: rate 0.05, penalty 10⁻⁵, prior width 1, α = 1;
prior networks times 3, to be of the size of the targets; 2000 steps, all points a batch. Posteriors of tangent kernels have the
paper's network (two hidden layers of 512), the others that of the tables. Laplace approximates the exact posterior of its own
trained network, the trained networks and the Bayesian deep ensemble that of the paper's network. Seed 0.
"""

import math
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import ntkgp
from benchmarks.methods import ntk
from benchmarks.methods.dropout import Dropout
from benchmarks.methods.ensemble import Ensemble
from benchmarks.methods.epinet import Epinet
from benchmarks.methods.laplace_torch import laplace
from benchmarks.methods.mean_field import MeanField
from benchmarks.methods.prior_networks import PriorNetworks
from benchmarks.methods.training.budget import Choice, learn
from benchmarks.methods.training.learner import Make, Ordinary, trained
from benchmarks.methods.training.networks import budget_network
from benchmarks.scores import Forecast
from benchmarks.timing import now
from benchmarks.uci import Split
from ntkgp.apps.figure1.toys import TOYS

SMALL = bool(os.environ.get("NTKGP_SMALL"))
NOISE, SEED = 0.1, 0
STEPS, WIDTH, GRID, SIDE = (40, 32, 21, 7) if SMALL else (2000, 512, 201, 41)


class Toy(NamedTuple):
    """Data as the methods get them, and where they are drawn."""

    split: Split
    at: Tensor  # the queries, (M, 1) or (M, 2), as they are drawn
    data: Tensor  # the training inputs, likewise
    network: nn.Module  # of the tangent kernel


def toys() -> dict[str, Toy]:
    """The three, the same at every call."""
    generator = torch.Generator().manual_seed(SEED)
    x, y = TOYS["paper"].draw(generator)
    line = torch.linspace(-4, 4, GRID).unsqueeze(1)
    circle = ntkgp.networks.TrigonometricInputs(-4.0, 4.0)
    network = ntkgp.mlp(2, width=WIDTH, generator=generator)
    found = {"the paper's toy": Toy(_split("paper", circle(x), y, circle(line)), line, x, network)}

    x = torch.cat([torch.rand(15, 1, generator=generator) * 0.8 + low for low in (-1.4, 0.6)])
    y = torch.sin(3 * x[:, 0]) + NOISE * torch.randn(30, generator=generator)
    line = torch.linspace(-2.5, 2.5, GRID).unsqueeze(1)
    network = ntkgp.mlp(1, width=WIDTH, output_scale=1.0, generator=generator)
    found["a gap"] = Toy(_split("gap", x, y, line), line, x, network)

    angle = torch.rand(20, generator=generator) * torch.pi
    arc = torch.stack([1.6 * angle.cos(), 1.6 * angle.sin() - 0.2], dim=1)
    clusters = [0.35 * torch.randn(20, 2, generator=generator) + torch.tensor([side, -1.4]) for side in (-1.5, 1.5)]
    x = torch.cat([arc, *clusters])
    y = torch.sin(2 * x[:, 0]) * torch.cos(x[:, 1]) + NOISE * torch.randn(60, generator=generator)
    plane = torch.cartesian_prod(torch.linspace(-3, 3, SIDE), torch.linspace(-3, 3, SIDE))
    network = ntkgp.mlp(2, width=WIDTH, output_scale=1.0, generator=generator)
    found["a plane"] = Toy(_split("plane", x, y, plane), plane, x, network)
    return found


def _split(name: str, x: Tensor, y: Tensor, new: Tensor) -> Split:
    """Toys are small numbers already: nothing is standardised."""
    blank = torch.full((len(new),), torch.nan, dtype=torch.float64)
    return Split(name, "toy", 0, x.double(), y.double(), new.double(), blank, 0.0, 1.0)


def _learned(make: Make, value: float, scale: float = 1.0) -> Callable[[Toy], Forecast]:
    choice = Choice(value, STEPS, NOISE, scale)
    return lambda toy: learn(make, (value,), toy.split, seed=SEED, choice=choice)[0]


def _mean_field(split: Split, values: Sequence[float]) -> MeanField:
    """With the noise known."""
    learner = MeanField(split, values)
    learner.log_noise.requires_grad_(False).fill_(math.log(NOISE))
    return learner


MAP = Choice(1e-5, STEPS, NOISE, 1.0)


def _laplace(weights: str, structure: str) -> Callable[[Toy], Forecast]:
    return lambda toy: laplace(toy.split, seed=SEED, weights=weights, structure=structure, choice=MAP)


def _kernel(toy: Toy) -> ntk.Kernel:
    return ntk.Kernel(toy.network, NOISE**2)


def analytic(toy: Toy, _: Forecast | None = None) -> Forecast:
    """The exact posterior of the paper's network."""
    return ntk.ntk_exact(toy.split, seed=SEED, known=_kernel(toy))


def analytic_trained(toy: Toy, approximation: Forecast) -> Forecast:
    """The exact posterior of the network that a Laplace approximation has, with its prior precision and noise."""
    net, _ = budget_network(toy.split, SEED, choice=MAP)
    chosen = approximation.chosen
    prior = {"prior_mean": ntkgp.network_mean, "prior_var": 1 / chosen["prior_precision"]}
    p = ntkgp.fit(net, toy.split.x, toy.split.y, noise_var=chosen["noise"] ** 2, **prior).predict(toy.split.x_test)
    return toy.split.forecast(p.mean, p.total_std, p.std)


class Row(NamedTuple):
    """A method of the picture, and the exact posterior that it claims to approximate."""

    label: str
    run: Callable[[Toy], Forecast]
    claims: Callable[[Toy, Forecast], Forecast] | None = None


ROWS = (
    Row("analytic NTK-GP\nntkgp, exact", analytic),
    Row("trained networks\nntkgp, the paper", lambda toy: ntk.ntk_trained(
        toy.split, seed=SEED, known=_kernel(toy), rank=5 if toy.split.name == "paper" else 20, tail=20), analytic),
    Row("Bayesian deep ensemble\nNTK, 20 members", lambda toy: ntk.ntk_ensemble(
        toy.split, seed=SEED, known=_kernel(toy)), analytic),
    Row("Laplace, full", _laplace("all", "full"), analytic_trained),
    Row("Laplace, KFAC", _laplace("all", "kron"), analytic_trained),
    Row("Laplace, last layer", _laplace("last_layer", "full"), analytic_trained),
    Row("deep ensemble", _learned(Ensemble, 1e-5)),
    Row("MC dropout", _learned(Dropout, 0.05)),
    Row("mean-field VI", _learned(_mean_field, 1.0)),
    Row("epinet", _learned(Epinet, 1.0)),
    Row("prior networks (RND)", _learned(PriorNetworks, 1e-5, 3.0)),
)  # fmt: skip


def panel(row: Row, toy: Toy) -> dict[str, Any]:
    """Mean and std of a method on a toy, its cost in trainings of one network, its distance from what it claims."""
    start = now("cpu")
    trained(Ordinary, toy.split, [1e-5], max(1, STEPS // 10))
    one = 10 * (now("cpu") - start)
    start = now("cpu")
    got = row.run(toy)
    cost = (now("cpu") - start) / one
    assert got.epistemic is not None
    found: dict[str, Any] = {"mean": _rounded(got.mean), "std": _rounded(got.epistemic), "cost": cost}
    if row.claims is not None:
        exact = row.claims(toy, got)
        assert exact.epistemic is not None
        found["mean_error"] = float((got.mean - exact.mean).norm() / exact.mean.norm())
        found["std_error"] = float((got.epistemic - exact.epistemic).norm() / exact.epistemic.norm())
        if toy.at.shape[1] == 1:  # drawn beside it
            found["claimed"] = {"mean": _rounded(exact.mean), "std": _rounded(exact.epistemic)}
    return found


def _rounded(values: Tensor) -> list[float]:
    return [float(f"{value:.5g}") for value in values.tolist()]
