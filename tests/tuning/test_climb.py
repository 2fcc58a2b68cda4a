"""The two ways up the likelihood."""

import math

import pytest
import torch
from torch import nn

import ntkgp
from ntkgp._system.progress import progress_bar
from ntkgp.networks import Erf, InputScales
from ntkgp.problem.build import build_problem
from ntkgp.problem.source import Source
from ntkgp.tuning.climb import Adam, Climb, Objective, QuasiNewton
from ntkgp.tuning.likelihood import NOISE, PRIOR, Likelihood, Logs
from tests.support.helpers import seeded


def objective(reach: float = 10.0, hyper_prior: float | None = 1.0) -> Objective:
    """Of an infinite network with three input scales, one of which matters."""
    g = seeded()
    x = torch.randn(80, 3, generator=g, dtype=torch.float64)
    y = torch.sin(2 * x[:, 0]) + 0.1 * torch.randn(80, generator=g, dtype=torch.float64)
    net = nn.Sequential(InputScales(torch.ones(3)), ntkgp.mlp(3, width=math.inf, depth=1, activation=Erf()))
    problem = build_problem(net, Source(x, y, 1.0), dtype=torch.float64)
    likelihood = Likelihood(problem, [list(problem.network.anchor)])
    centre: Logs = {PRIOR: torch.full((1,), -2.0), NOISE: torch.full((1,), -2.0), "0.scale": torch.zeros(3)}
    centre = {name: log.double() for name, log in centre.items()}
    return Objective(likelihood, centre, {name: (log - reach, log + reach) for name, log in centre.items()}, hyper_prior)


def value(of: Objective, logs: Logs) -> float:
    return of.gradient({name: log.clone().requires_grad_() for name, log in logs.items()})


def test_the_prior_is_gaussian_around_the_centre():
    """Twice as wide for prior variances, none for noise; its gradient is that of its value."""
    of, flat = objective(), objective(hyper_prior=None)
    moved = {PRIOR: of.centre[PRIOR] + 0.4, NOISE: of.centre[NOISE] + 3.0, "0.scale": of.centre["0.scale"] - 0.7}
    prior = value(of, moved) - value(flat, moved)
    assert prior == pytest.approx(-0.5 * 0.2**2 - 3 * 0.5 * 0.7**2, abs=1e-9)
    gradients = []
    for each in (of, flat):
        leaves = {name: log.clone().requires_grad_() for name, log in moved.items()}
        each.gradient(leaves)
        gradients.append({name: leaf.grad for name, leaf in leaves.items()})
    expected = {PRIOR: -0.4 / 4, NOISE: 0.0, "0.scale": 0.7}
    for name, gradient in expected.items():
        assert torch.allclose(gradients[0][name] - gradients[1][name], torch.tensor(gradient).double(), atol=1e-9)


@pytest.mark.parametrize("climb", [QuasiNewton(), Adam()], ids=["L-BFGS", "Adam"])
def test_the_best_point_is_a_maximum(climb: Climb):
    of = objective()
    best, found = climb.run(of, of.centre, 150, True, progress_bar(False, total=1, desc=""))
    assert best == pytest.approx(value(of, found), rel=1e-12)
    leaves = {name: log.clone().requires_grad_() for name, log in found.items()}
    of.gradient(leaves)
    assert max(float(leaf.grad.abs().max()) for leaf in leaves.values() if leaf.grad is not None) < 0.3
    assert found["0.scale"][0] > found["0.scale"][1:].max() + 1


def test_quasi_newton_needs_fewer_evaluations():
    of = objective()
    show = progress_bar(False, total=1, desc="")
    fast, slow = (climb.run(of, of.centre, 40, True, show)[0] for climb in (QuasiNewton(), Adam()))
    assert fast > slow + 0.01
    longest = Adam().run(of, of.centre, 400, True, show)[0]
    assert fast > longest - 0.01


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_no_more_evaluations_than_asked_for(steps: int, monkeypatch: pytest.MonkeyPatch):
    of, calls = objective(), list[float]()
    monkeypatch.setattr(
        Objective, "gradient", lambda self, leaves, own=Objective.gradient: calls.append(own(self, leaves)) or calls[-1]
    )
    best, _ = QuasiNewton().run(of, of.centre, steps, False, progress_bar(False, total=1, desc=""))
    assert len(calls) == steps
    assert best == max(calls)


def test_bounds_hold():
    """The likelihood wants larger scales than allowed, and less noise."""
    of = objective(reach=0.3)
    best, found = QuasiNewton().run(of, of.centre, 60, True, progress_bar(False, total=1, desc=""))
    for name, log in found.items():
        low, high = of.bounds[name]
        assert (log >= low).all()
        assert (log <= high).all()
    assert found[NOISE] == of.bounds[NOISE][0]
    inside = {name: log - 0.01 * torch.sign(log - of.centre[name]) for name, log in found.items() if name == NOISE}
    assert best > value(of, {**found, **inside})


def test_where_the_matrix_cannot_be_factorised_the_search_goes_on():
    """At no noise the kernel of repeated points is singular."""
    x = torch.zeros(40, 1, dtype=torch.float64)
    net = nn.Sequential(InputScales(torch.ones(1)), ntkgp.mlp(1, width=math.inf, depth=1, activation=Erf()))
    problem = build_problem(net, Source(x, torch.ones(40, dtype=torch.float64), 1.0), dtype=torch.float64)
    start = {PRIOR: torch.zeros(1).double(), NOISE: torch.full((1,), -20.0).double(), "0.scale": torch.zeros(1).double()}
    bounds = {name: (log - 60, log + 60) for name, log in start.items()}
    of = Objective(Likelihood(problem, [list(problem.network.anchor)]), start, bounds, None)
    best, found = QuasiNewton().run(of, start, 60, True, progress_bar(False, total=1, desc=""))
    assert math.isfinite(best)
    assert best >= value(of, start)
    assert all(bool(torch.isfinite(log).all()) for log in found.values())
