"""The matrix-free posterior against the oracle."""

import pytest
import torch
from torch import Tensor, nn

import ntkgp
from ntkgp.posterior.lowrank import method as lowrank
from ntkgp.posterior.lowrank import side as side_module
from ntkgp.posterior.lowrank.side import choose_side
from tests.support.cases import DOUBLE, Case, by_name, every, rank_of, reference
from tests.support.helpers import TIGHT
from tests.support.lowrank import fitted
from tests.support.oracle import error

each_side = pytest.mark.parametrize("side", ["kernel", "weights", "matrix"])


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch, side: str) -> str:
    """Look for the head on one side, whichever would be cheaper."""
    monkeypatch.setattr(lowrank, "choose_side", lambda problem, columns, solved: side)
    return side


@pytest.mark.usefixtures("types_of_typical_cases")
@every(DOUBLE)
@each_side
def test_mean_and_bracket(case: Case, choose: str):
    truth = reference(case)
    p = fitted(case, ntkgp.LowRank(rank=min(3, rank_of(case)), solver=TIGHT)).predict(case.query)
    slack = 1e-9 * truth.prior.diagonal()
    assert error(p.mean.flatten(), truth.mean) <= 1e-7
    assert bool((p.lower.flatten() <= truth.variance + slack).all())
    assert bool((truth.variance <= p.upper.flatten() + slack).all())
    assert bool(((p.lower <= p.variance) & (p.variance <= p.upper)).all())


@pytest.mark.usefixtures("types_of_typical_cases")
@every(DOUBLE)
@each_side
def test_exact_at_full_rank(case: Case, choose: str):
    truth = reference(case)
    posterior = fitted(case, ntkgp.LowRank(rank=rank_of(case), solver=TIGHT))
    p = posterior.predict(case.query)
    assert error(p.variance.flatten(), truth.variance) <= 1e-8
    assert error(posterior.covariance(case.query), truth.covariance) <= 1e-8


@pytest.mark.parametrize("name", ["float32", "float32, two outputs"])
def test_float32_modules_are_answered_in_float32(name: str):
    case = by_name(name)
    truth = reference(case)
    p = fitted(case, ntkgp.LowRank(rank=4)).predict(case.query)
    assert p.mean.dtype == p.variance.dtype == torch.float32
    assert error(p.mean.flatten(), truth.mean) <= 1e-4


@pytest.mark.parametrize(
    ("name", "columns", "side"),
    [("paper mlp", 8, "kernel"), ("more points than parameters", 1, "matrix"), ("more points than parameters", 8, "matrix")],
)
def test_the_side_is_chosen_by_counted_cost(name: str, columns: int, side: str):
    """12 points and 329 parameters against 40 points and 8."""
    posterior = fitted(by_name(name), ntkgp.LowRank(rank=columns))
    assert posterior.side == choose_side(posterior.problem, columns, 1) == side
    assert ("matrix" in posterior.seconds) == (side == "matrix")
    # The matrix is not part of the problem, so that it draws the same functions after a round trip through a file.
    assert not any(isinstance(part, Tensor) and part.ndim == 2 for part in vars(posterior.problem.operators).values())


def test_what_does_not_fit_is_not_written_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(side_module, "free_bytes", lambda device: 0)
    for name in ("paper mlp", "more points than parameters"):
        assert fitted(by_name(name), ntkgp.LowRank(rank=2)).side == "weights"


def test_progress_is_shown_on_request_only(capsys: pytest.CaptureFixture[str]):
    case = by_name("paper mlp")
    for method in (ntkgp.LowRank(rank=2), ntkgp.LowRank(rtol=0.5)):
        case.fit(method)
        assert capsys.readouterr().err == ""
        case.fit(method, progress=True)
        shown = capsys.readouterr().err
        assert "finding the head" in shown
        assert "solving" in shown


def test_a_network_that_is_dead_at_some_points():
    """At x < 0 all derivatives are zero: nothing is uncertain there, and no bracket wide."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False)).double()
    for p in net.parameters():
        nn.init.ones_(p)
    x = torch.linspace(-1, 1, 5, dtype=torch.float64).unsqueeze(1)
    for method in (ntkgp.LowRank(rtol=0.1), ntkgp.LowRank(rank=1, draws=8)):
        p = ntkgp.fit(net, x, x[:, 0], noise_var=0.1, method=method).predict(x)
        assert bool((p.variance[:2] == 0).all())
        assert bool((p.upper[:2] == 0).all())


@pytest.mark.parametrize("method", [ntkgp.LowRank(rank=1, draws=2), ntkgp.LowRank(rtol=0.1)], ids=["rank", "rtol"])
def test_a_network_that_is_dead_everywhere(method: ntkgp.LowRank):
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 2, bias=False)).double()
    for p in net.parameters():
        nn.init.constant_(p, -1.0)
    x = torch.tensor([[1.0]], dtype=torch.float64)
    p = ntkgp.fit(net, x, torch.ones(1, 2, dtype=torch.float64), noise_var=0.1, method=method).predict(x)
    assert bool((torch.stack([p.mean, p.variance, p.lower, p.upper]) == 0).all())


def test_a_rank_that_is_too_large():
    with pytest.raises(ValueError, match="rank must be at most"):
        by_name("paper mlp").fit(ntkgp.LowRank(rank=13))


@pytest.mark.parametrize("method", [ntkgp.Exact(), ntkgp.LowRank(rank=4, solver=TIGHT)], ids=["exact", "low rank"])
@pytest.mark.parametrize("name", ["noise per output", "network as prior mean"])
def test_samples_have_the_posteriors_moments(method: ntkgp.Exact | ntkgp.LowRank, name: str):
    case, count = by_name(name), 4000
    truth = reference(case)
    f = case.fit(method, generator=torch.Generator().manual_seed(0)).sample(count, generator=torch.Generator().manual_seed(1))
    values = f(case.query)
    assert torch.equal(values, f(case.query))
    flat: Tensor = values.reshape(count, -1)
    spread = truth.variance.sqrt()
    assert bool(((flat.mean(dim=0) - truth.mean).abs() <= 5 * spread / count**0.5).all())
    # The standard error of a sample covariance entry is at most √2 σ_i σ_j / √count.
    off = (torch.cov(flat.T) - truth.covariance).abs() / (spread.unsqueeze(0) * spread.unsqueeze(1))
    assert float(off.max()) <= 5 * (2 / count) ** 0.5


@pytest.mark.parametrize("name", ["paper mlp", "cnn"])
def test_predictions_are_differentiable(name: str):
    case = by_name(name)
    posterior = fitted(case, ntkgp.LowRank(rank=3, draws=2))
    x = case.query[:2].clone().requires_grad_()
    g = torch.Generator().manual_seed(5)
    way = torch.randn(x.shape, generator=g, dtype=torch.float64)

    def answer(x: Tensor) -> Tensor:
        p = posterior.predict(x)
        return p.mean.sum() + p.variance.sum() + p.lower.sum() + p.upper.sum()

    answer(x).backward()
    step = 1e-6
    numeric = (answer(x.detach() + step * way) - answer(x.detach() - step * way)) / (2 * step)
    assert x.grad is not None
    torch.testing.assert_close((x.grad * way).sum(), numeric, rtol=1e-4, atol=1e-6)


def test_samples_are_differentiable():
    case = by_name("paper mlp")
    f = case.fit(ntkgp.Exact()).sample(2, generator=torch.Generator().manual_seed(0))
    x = case.query[:2].clone().requires_grad_()
    f(x).sum().backward()
    step = 1e-6 * torch.tensor([1.0, 0.0]).double()
    numeric = (f(case.query[:2] + step) - f(case.query[:2] - step)).sum(dim=0) / 2e-6
    assert x.grad is not None
    torch.testing.assert_close(x.grad[:, 0], numeric, rtol=1e-4, atol=1e-6)
