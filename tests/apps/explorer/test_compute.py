"""The curves of the explorer against the oracle."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("bokeh", reason="Bokeh is not installed")


import torch
from torch import Tensor

import ntkgp
from ntkgp.apps.explorer.model.compute import (
    GRID,
    Memory,
    answer,
    data,
    network,
    queries,
)
from ntkgp.apps.explorer.model.export import script
from ntkgp.apps.explorer.model.state import INFINITE, LAYERS, State, StateError, start
from ntkgp.apps.explorer.model.training import Training
from ntkgp.posterior.exact.spectral import JointKernel, SpectralPosterior, Spectrum
from ntkgp.tangent.tangent import Tangent
from tests.support import oracle
from tests.support.explorer_states import SMALL, every_state


def referee(state: State) -> oracle.Oracle:
    x, y = data(state)
    return oracle.pose(network(state), x, y, queries(state), state.noise_var)


@every_state()
def test_all_curves_are_those_of_the_oracle(state: State):
    got, truth = answer(state), referee(state)
    K = min(state.rank, len(state.points))
    tolerance: dict[str, Any] = {"rel": 1e-6, "abs": 1e-9 * float(truth.prior.max()) / min(state.noise_var, 1.0)}
    assert got.rank == K
    assert got.mean.tolist() == pytest.approx(truth.mean.tolist(), **tolerance)
    assert got.exact.tolist() == pytest.approx(truth.variance.tolist(), **tolerance)
    assert got.upper.tolist() == pytest.approx(truth.our_bound(K).diagonal().tolist(), **tolerance)
    assert got.paper.tolist() == pytest.approx(truth.paper_bound(K).diagonal().tolist(), **tolerance)
    head = truth._head(K)[0]
    kept = truth.kernel.diagonal().sum() * 1e-10 < torch.linalg.eigvalsh(truth.kernel).flip(0)[:K]
    for mine, theirs in zip(got.predictors.T[kept], head.T[kept], strict=True):  # each up to its sign
        assert min(oracle.error(mine, theirs), oracle.error(-mine, theirs)) < 1e-5


@every_state()
def test_the_bracket_encloses_and_is_never_looser_than_the_library_s(state: State):
    got = answer(state)
    slack = 1e-9 * got.prior
    assert bool((got.lower >= 0).all())
    for inner in (got.exact, got.variance):
        assert bool((got.lower <= inner + slack).all())
        assert bool((inner <= got.upper + slack).all())
    assert bool((got.upper <= got.paper + slack).all())
    x, y = data(state)
    method = ntkgp.LowRank(rank=got.rank, draws=0, svd=ntkgp.linalg.DenseSVD(), dtype=torch.float64)
    p = ntkgp.fit(network(state), x, y, noise_var=state.noise_var, method=method).predict(queries(state))
    assert bool((p.lower <= got.lower * (1 + 1e-6) + slack).all())
    assert got.upper.tolist() == pytest.approx(
        p.upper.tolist(), rel=1e-5, abs=1e-8 * float(got.prior.max()) / min(state.noise_var, 1)
    )


def test_an_empty_plot_shows_the_prior():
    got = answer(replace(start("empty"), shown=tuple(LAYERS)))
    assert bool((got.mean == 0).all())
    for variance in (got.exact, got.variance, got.lower, got.upper, got.paper):
        assert torch.equal(variance, got.prior)
    assert got.samples.shape == (3, GRID + 1)
    assert "prior" in got.notes[0]


def spectral(state: State) -> SpectralPosterior:
    x, y = data(state)
    kernel = JointKernel(ntkgp.kernel(network(state), torch.cat([queries(state), x])), len(x))
    return SpectralPosterior(kernel, Spectrum.of(kernel), y, state.noise_var)


def test_tail_predictors_supply_what_the_head_leaves_out():
    state = replace(SMALL, rank=2)
    got, posterior = answer(state), spectral(state)
    targets = posterior.tail_targets(2, 4000, torch.Generator().manual_seed(0)) * state.noise_var**0.5
    solved = torch.linalg.solve(posterior.kernel.train + state.noise_var * torch.eye(len(targets)).double(), targets)
    explained = (posterior.kernel.cross @ solved).square().mean(dim=1)
    missing = got.upper - got.exact
    assert oracle.error(explained, missing) < 0.06


def test_samples_have_the_mean_and_the_variance_of_the_posterior():
    state, got = replace(SMALL, samples=10), answer(SMALL)
    posterior = spectral(state)
    drawn = torch.cat([posterior.sample(10, torch.Generator().manual_seed(seed + 1)) for seed in range(200)])
    assert oracle.error(drawn.mean(dim=0), got.mean) < 0.1
    assert oracle.error(drawn.std(dim=0), got.exact.sqrt()) < 0.05


def test_only_what_changed_is_computed_again(monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []
    at = Tangent.at

    def counted(self: Tangent, x: Tensor) -> Any:
        asked.append(len(x))
        return at(self, x)

    monkeypatch.setattr(Tangent, "at", counted)
    memory = Memory()
    answer(SMALL, memory)
    assert asked == [GRID + 1, 6]
    asked.clear()
    for other in (replace(SMALL, noise_var=0.2), replace(SMALL, rank=1), replace(SMALL, tail=3), replace(SMALL, shown=())):
        assert_same(answer(other, memory), answer(other), asked)
    moved = SMALL.with_point(0.0, 1.0)
    answer(moved, memory)
    assert asked == [7]  # the grid is known
    answer(replace(moved, points=(*moved.points[:-1], (0.0, 2.0))), memory)
    assert asked == [7]  # only a y


def assert_same(got: Any, fresh: Any, asked: list[int]) -> None:
    asked[:] = asked[:-2]  # those of the fresh one
    assert asked == []
    assert torch.equal(got.mean, fresh.mean)
    assert torch.equal(got.variance, fresh.variance)


def test_a_network_of_infinite_width():
    """The last stop of the slider: the limit of wide networks, without weights to train."""
    points = ((-1.5, 0.5), (0.0, -1.0), (2.0, 1.0))
    limit = answer(State(points=points, width=INFINITE, rank=2, tail=8))
    wide = [answer(State(points=points, width=1024, rank=2, tail=8, seed=seed)) for seed in range(8)]
    exact = torch.stack([one.exact for one in wide]).mean(dim=0)
    assert float((limit.exact - exact).norm() / exact.norm()) < 0.1
    assert bool((limit.lower <= limit.exact + 1e-9).all() and (limit.exact <= limit.upper + 1e-9).all())
    inputs = torch.tensor([[x] for x, _ in points], dtype=torch.float64)
    targets = torch.tensor([y for _, y in points], dtype=torch.float64)
    fitted = ntkgp.fit(network(State(width=INFINITE)), inputs, targets, noise_var=0.01).predict(limit.x.unsqueeze(1))
    assert torch.allclose(limit.mean, fitted.mean, atol=1e-8)
    assert torch.allclose(limit.exact, fitted.variance, atol=1e-8)
    with pytest.raises(StateError, match="has no weights to train: choose a finite width"):
        Training(State(points=points, width=INFINITE), limit)


def test_the_script_of_a_network_of_infinite_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    found: dict = {}
    exec(script(State(points=((-1.0, 0.5), (1.0, -0.5)), width=INFINITE)), found)
    limit = answer(State(points=((-1.0, 0.5), (1.0, -0.5)), width=INFINITE))
    assert torch.allclose(found["p"].variance, limit.exact[:GRID], atol=1e-8)
    assert (tmp_path / "posterior.png").exists()
