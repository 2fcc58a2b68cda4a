"""Certified brackets of any width at a few points, for every kind of posterior."""

import warnings

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import ntkgp
from ntkgp.posterior import sharpening
from ntkgp.posterior.lowrank.posterior import LowRankPosterior
from tests.support.cases import DOUBLE, Case, by_name, every, rank_of, reference
from tests.support.helpers import METHODS, each_method, seeded
from tests.support.oracle import error
from tests.support.updates import grid, network


@pytest.mark.usefixtures("types_of_typical_cases")
@every(DOUBLE)
@pytest.mark.parametrize("rtol", [0.3, 1e-6])
def test_the_bracket_holds_and_is_as_narrow_as_asked(case: Case, rtol: float):
    truth = reference(case)
    posterior = case.fit(ntkgp.LowRank(rank=min(2, rank_of(case)), draws=2), generator=seeded())
    p = posterior.sharpen(case.query, rtol=rtol)
    slack = 1e-12 * truth.prior.diagonal()
    assert p.confidence == 1.0
    assert bool(((p.upper - p.lower) <= rtol * p.upper).all())
    assert bool((p.lower.flatten() <= truth.variance + slack).all())
    assert bool((truth.variance <= p.upper.flatten() + slack).all())
    assert bool(((p.lower <= p.variance) & (p.variance <= p.upper)).all())
    assert torch.equal(p.mean, posterior.predict(case.query).mean)


@each_method
def test_every_kind_of_posterior(method: str):
    case = by_name("two outputs")
    posterior, truth = case.fit(METHODS[method], generator=seeded()), reference(case)
    p = posterior.sharpen(case.query, rtol=1e-4, noise_var=0.3)
    assert error(p.variance.flatten(), truth.variance) <= 1e-4
    assert bool((p.lower.flatten() <= truth.variance * (1 + 1e-9)).all())
    assert bool((truth.variance <= p.upper.flatten() * (1 + 1e-9)).all())
    assert p.noise_var is not None
    assert bool((p.noise_var == 0.3).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_few_points_at_a_time(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    (x, y), net = grid(200), network()
    truth = ntkgp.fit(net, x, y, noise_var=0.01, method=ntkgp.Exact()).predict(x[:7] * 1.5).variance
    posterior = ntkgp.fit(
        network().to(dtype), x.to(dtype), y.to(dtype), noise_var=0.01, method=ntkgp.LowRank(rank=8, draws=4), generator=seeded()
    )
    monkeypatch.setattr(sharpening, "rows_per_chunk", lambda *_, **__: 3)
    p = posterior.sharpen(x[:7].to(dtype) * 1.5, rtol=0.01)
    assert p.variance.dtype == dtype
    assert p.variance.shape == (7,)
    assert bool(((p.upper - p.lower) <= 0.0101 * p.upper).all())
    # A float32 network is another function than its float64 copy in the last digits.
    loose = 1 if dtype == torch.float64 else 1.001
    assert bool((p.lower.double() <= truth * loose).all())
    assert bool((truth <= p.upper.double() * loose).all())


def test_points_in_batches():
    (x, y), net = grid(200), network()
    loader = DataLoader(TensorDataset(x, y), batch_size=64)
    truth = ntkgp.fit(net, x, y, noise_var=0.01, method=ntkgp.Exact()).predict(x[:5]).variance
    posterior = ntkgp.fit(net, loader, noise_var=0.01, method=ntkgp.LowRank(rank=8, draws=4), generator=seeded())
    assert error(posterior.sharpen(x[:5], rtol=1e-5).variance, truth) <= 1e-5


def test_what_was_reached_is_said():
    """Two steps are not enough: the warning says how wide the bracket is, and it still holds."""
    (x, y), net = grid(300), network()
    truth = ntkgp.fit(net, x, y, noise_var=1e-4, method=ntkgp.Exact()).predict(x[:5]).variance
    posterior = ntkgp.fit(net, x, y, noise_var=1e-4, method=ntkgp.LowRank(rank=4, draws=4), generator=seeded())
    with pytest.warns(ntkgp.NumericalWarning, match=r"is (\S+) wide .* after at most 2 iterations, rtol asks for 0.01"):
        p = posterior.sharpen(x[:5], rtol=0.01, max_iterations=2)
    assert float((1 - p.lower / p.upper).max()) > 0.01
    assert bool(((p.lower <= truth) & (truth <= p.upper)).all())


def test_narrow_brackets_cost_nothing(monkeypatch: pytest.MonkeyPatch):
    """Where the head alone is good enough, nothing is solved."""
    case = by_name("paper mlp")
    posterior = case.fit(ntkgp.LowRank(rank=12), generator=seeded())
    monkeypatch.setattr(ntkgp.CGLS, "solve", lambda *_, **__: pytest.fail("solved"))
    p = posterior.sharpen(case.query, rtol=0.01)
    assert bool(((p.upper - p.lower) <= 0.01 * p.upper).all())


def test_zero_variance():
    """A network that is dead at a query has no variance there, and its bracket no width."""
    net = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.ReLU(), torch.nn.Linear(1, 1, bias=False)).double()
    for p in net.parameters():
        torch.nn.init.ones_(p)
    x = torch.linspace(0.1, 1, 5, dtype=torch.float64).unsqueeze(1)
    posterior = ntkgp.fit(net, x, x[:, 0], noise_var=0.1, method=ntkgp.LowRank(rank=1, draws=2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        p = posterior.sharpen(torch.tensor([[-1.0], [0.5]], dtype=torch.float64), rtol=0.01)
    assert float(p.variance[0]) == float(p.lower[0]) == float(p.upper[0]) == 0
    assert float(p.variance[1]) > 0


@pytest.mark.parametrize(("options", "words"), [({"rtol": 0.0}, "rtol"), ({"max_iterations": 0}, "max_iterations must be")])
@each_method
def test_bad_options(method: str, options: dict[str, float], words: str):
    case = by_name("paper mlp")
    posterior = case.fit(METHODS[method], generator=seeded())
    with pytest.raises(ValueError, match=words):
        posterior.sharpen(case.query, **options)  # pyright: ignore[reportArgumentType]


def test_after_an_update_and_from_a_file(path):
    (x, y), net = grid(120), network()
    posterior = ntkgp.fit(net, x[:100], y[:100], noise_var=0.01, method=ntkgp.LowRank(rank=4, draws=2), generator=seeded())
    more = posterior.update(x[100:], y[100:])
    assert isinstance(more, LowRankPosterior)
    truth = ntkgp.fit(net, x, y, noise_var=0.01, method=ntkgp.Exact()).predict(x[:6]).variance
    more.save(path)
    for one in (more, ntkgp.load(path, net)):
        assert error(one.sharpen(x[:6], rtol=1e-5).variance, truth) <= 1e-5


def test_the_filters_of_warnings_are_left_alone(monkeypatch: pytest.MonkeyPatch):
    """They belong to the process: two threads that replace and restore them can leave one's filters behind."""

    def forbidden(*arguments: object, **options: object) -> None:
        raise AssertionError("warnings.catch_warnings in the library")

    posterior = by_name("paper mlp").fit(ntkgp.LowRank(rank=1, draws=2), generator=seeded())

    def sharpened() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(warnings, "catch_warnings", forbidden)
            posterior.sharpen(by_name("paper mlp").query, rtol=1e-9, max_iterations=1)

    with pytest.warns(ntkgp.NumericalWarning, match="the bracket of some variance") as caught:
        sharpened()
    assert len(caught) == 1  # the solver does not warn in addition
