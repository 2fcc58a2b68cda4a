"""The automatic choice: exact wherever a dense form fits and nothing else takes less work; it says what and why."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ntkgp
from ntkgp.posterior.choice import cost
from ntkgp.posterior.choice.choose import choose_for
from ntkgp.posterior.choice.cost import ROOM, Size
from ntkgp.posterior.exact.posterior import ExactPosterior
from ntkgp.posterior.lowrank.posterior import LowRankPosterior
from ntkgp.problem.source import Source
from tests.support.helpers import METHODS, each_method, seeded
from tests.support.oracle import error
from tests.support.updates import grid, network

GIB = 2**30
SOME = Size(points=1000, rows=1000, parameters=5000, pair=200, free=20 * GIB)


def size_of(module: nn.Module, points: int, outputs: int = 1, names: list[str] | None = None) -> Size:
    x, y = torch.zeros(points, 2), torch.zeros(points, outputs)
    return Size.of(module, Source.of(module, x, y, 0.1, None), names)


@pytest.mark.parametrize(
    ("rows", "parameters", "side"),
    [(1000, 5000, "kernel"), (100_000, 5000, "weights"), (9000, 17_792, "kernel"), (1_000_000, 4800, "weights"),
     (60_000, 1344, "weights"), (20_000, 20_000, "kernel")],
)  # fmt: skip
def test_the_smaller_matrix_is_factorised(rows: int, parameters: int, side: str):
    method, why = choose_for(replace(SOME, points=rows, rows=rows, parameters=parameters))
    assert method == ntkgp.Exact(side)
    assert f"{rows if side == 'kernel' else parameters:,}" in why


def test_too_large_for_both():
    method, why = choose_for(replace(SOME, points=200_000, rows=200_000, parameters=100_000))
    assert isinstance(method, ntkgp.LowRank)
    assert why == "for 200,000 observations and 100,000 parameters neither dense matrix fits 20.0 GiB of free memory"


def test_memory_decides():
    """8·n² bytes and room for blocks: one number more or less."""
    size = replace(SOME, points=10_000, rows=10_000, parameters=100_000)
    assert replace(size, free=8 * 10_000**2 + ROOM + 1).exact_side() == "kernel"
    assert replace(size, free=8 * 10_000**2 + ROOM).exact_side() is None


def test_what_takes_less_work_is_taken():
    """A matrix of 40,000 rows fits 20 GiB, but its factorisation would take longer than draws of a small network."""
    size = replace(SOME, points=49_000, rows=49_000, parameters=49_000, pair=400)
    method, why = choose_for(size)
    assert isinstance(method, ntkgp.LowRank) == (size.matrix_free(*ntkgp.LowRank().settled(49_000, 49_000)) < size.kernel)
    assert ("times less work" in why) == isinstance(method, ntkgp.LowRank)


@pytest.mark.parametrize("parameters", [300, 5000, 30_000, 80_000, 10**6])
def test_one_point_more_is_never_slower_and_worse(parameters: int):
    """Wherever the method changes from exact to approximate, the approximate one takes less work, or nothing dense fits."""
    previous = None
    for points in torch.logspace(2, 7, 300).long().tolist():
        size = replace(SOME, points=points, rows=points, parameters=parameters)
        method, _ = choose_for(size)
        if isinstance(method, ntkgp.LowRank):
            work = size.matrix_free(*method.settled(size.rows, size.parameters))
            options = {"kernel": size.kernel, "weights": size.weights}
            fits = {"kernel": size.fits(size.rows), "weights": size.fits(size.parameters)}
            assert all(options[side] > work for side in options if fits[side])
        elif isinstance(previous, ntkgp.LowRank):
            raise AssertionError(f"{points} points: exact again after an approximation of fewer points")
        previous = method


def test_sizes_are_counted():
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
    size = size_of(net, 50, 3)
    assert (size.points, size.rows, size.parameters) == (50, 150, 24 + 27)
    assert size_of(net, 50, 3, ["2"]).parameters == 27
    for p in net[0].parameters():
        p.requires_grad_(False)
    assert size_of(net, 50, 3).parameters == 27


def test_the_posterior_says_what_was_chosen_and_why(monkeypatch: pytest.MonkeyPatch):
    (x, y), net = grid(60), network()
    by_default = ntkgp.fit(net, x, y, noise_var=0.01)
    assert isinstance(by_default, ExactPosterior)
    assert by_default.side == "kernel"
    assert repr(by_default) == (
        "<ExactPosterior: 60 points, 1,184 parameters; exact over the observations (60 × 60 matrix); std exact; the matrix "
        "over the 60 observations fits the memory, and nothing else takes less work for 60 observations and 1,184 parameters>"
    )
    small = ntkgp.fit(ntkgp.mlp(2, width=4, generator=seeded()).double(), x, y, noise_var=0.01)
    assert isinstance(small, ExactPosterior)
    assert small.side == "weights"
    assert "exact over the weights (36 × 36 matrix)" in repr(small)
    monkeypatch.setattr(cost, "free_bytes", lambda device: 1000)
    large = ntkgp.fit(net, x, y, noise_var=0.01, generator=seeded())
    assert isinstance(large, LowRankPosterior)
    assert "neither dense matrix fits" in large.choice
    assert "std exact" in large.choice  # sixty directions cost less than draws
    drawn = ntkgp.fit(net, x, y, noise_var=0.01, method=ntkgp.LowRank(rank=4, draws=50), generator=seeded())
    assert drawn.choice == "low rank (4 directions, 50 draws); std within 10 %; you chose it"
    assert "you chose Exact()" in ntkgp.fit(net, x, y, noise_var=0.01, method=ntkgp.Exact()).choice


@each_method
def test_the_choice_outlives_a_file_and_an_update(method: str, path):
    (x, y), net = grid(20), network()
    posterior = ntkgp.fit(net, x[:15], y[:15], noise_var=0.01, method=METHODS[method], generator=seeded())
    assert posterior.update(x[15:], y[15:], generator=seeded()).why == posterior.why != ""
    posterior.save(path)
    assert ntkgp.load(path, net).choice == posterior.choice


def test_batches_are_counted_and_fitted_exactly():
    (x, y), net = grid(500), ntkgp.mlp(2, width=8, generator=seeded(3)).double()
    loader = DataLoader(TensorDataset(x, y), batch_size=64)
    posterior = ntkgp.fit(net, loader, noise_var=0.01)
    assert isinstance(posterior, ExactPosterior)
    assert posterior.side == "weights"
    assert posterior.problem.data.batches is not None
    truth = ntkgp.fit(net, x, y, noise_var=0.01, method=ntkgp.Exact("kernel")).predict(x)
    assert error(posterior.predict(x).std, truth.std) <= 1e-6
