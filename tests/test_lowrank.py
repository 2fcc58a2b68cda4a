"""The matrix-free posterior against the oracle, and its parts against dense linear algebra."""

import pytest
import torch
from oracle import error
from problems import CASES, Case, by_name, every, reference
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ntkgp
from ntkgp import heads, lowrank
from ntkgp._progress import NoBar
from ntkgp.lowrank import LowRankPosterior
from ntkgp.tangent import tangent as tangent_module

TIGHT = ntkgp.CGLS(tol=1e-10, max_iterations=5000)
DOUBLE = [case for case in CASES if case.dtype == torch.float64 and "tiny" not in case.name]
each_side = pytest.mark.parametrize("side", ["kernel", "weights", "matrix"])


def fitted(case: Case, method: ntkgp.LowRank, seed: int = 0) -> LowRankPosterior:
    posterior = case.fit(method, generator=torch.Generator().manual_seed(seed))
    assert isinstance(posterior, LowRankPosterior)
    return posterior


def rank_of(case: Case) -> int:
    return min(len(case.x) * case.outputs, sum(p.numel() for p in case.module().parameters() if p.requires_grad))


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch, side: str) -> str:
    """Look for the head on one side, whichever would be cheaper."""
    monkeypatch.setattr(lowrank, "choose_side", lambda problem, columns, solved: side)
    return side


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


def test_the_tail_is_unbiased_for_any_head():
    """With a head that has barely been looked for: the mean over 2000 draws lies within four standard errors."""
    case = by_name("noise per output")
    poor = ntkgp.RandomizedSVD(oversample=0, power=0, tol=None)
    method = ntkgp.LowRank(rank=3, tail=2000, svd=poor, solver=ntkgp.CGLS(tol=1e-8))
    posterior = fitted(case, method)
    jacobian = posterior.problem.tangent.at(case.query)
    upper = jacobian.diag() - jacobian.matmat(posterior.explained).square().sum(dim=1)
    draws = upper.unsqueeze(1) - jacobian.matmat(posterior.tail).square()
    errors = draws.std(dim=1) / 2000**0.5
    assert bool(((draws.mean(dim=1) - reference(case).variance).abs() <= 4 * errors).all())


def test_rtol_grows_the_head_until_the_bracket_is_tight():
    case = by_name("paper mlp")
    posterior = fitted(case, ntkgp.LowRank(rtol=0.05, points=case.query))
    p = posterior.predict(case.query)
    assert posterior.bracket_width is not None
    assert posterior.bracket_width <= 0.05
    assert bool(((p.upper - p.lower) <= 0.0501 * p.upper).all())


def test_rtol_out_of_reach_says_what_was_reached():
    case = by_name("paper mlp")
    with pytest.warns(ntkgp.NumericalWarning, match="wide .* at rank 2"):
        fitted(case, ntkgp.LowRank(rtol=1e-6, max_rank=2))


@pytest.mark.parametrize(
    ("name", "columns", "side"),
    [("paper mlp", 8, "kernel"), ("more points than parameters", 1, "matrix"), ("more points than parameters", 8, "matrix")],
)
def test_the_side_is_chosen_by_counted_cost(name: str, columns: int, side: str):
    """12 points and 329 parameters against 40 points and 8."""
    posterior = fitted(by_name(name), ntkgp.LowRank(rank=columns))
    assert posterior.side == lowrank.choose_side(posterior.problem, columns, 1) == side
    assert ("matrix" in posterior.seconds) == (side == "matrix")
    assert posterior.problem.matrix is None  # so that it draws the same functions after a round trip through a file


def test_what_does_not_fit_is_not_written_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(heads, "free_bytes", lambda device: 0)
    for name in ("paper mlp", "more points than parameters"):
        assert fitted(by_name(name), ntkgp.LowRank(rank=2)).side == "weights"


def test_growing_keeps_what_was_found():
    problem = fitted(by_name("paper mlp"), ntkgp.LowRank(rank=4)).problem
    svd, g = ntkgp.RandomizedSVD(power=2, tol=None), torch.Generator().manual_seed(0)
    bar = NoBar()
    small = lowrank.grow(problem, None, 4, svd, "weights", g, bar)
    large = lowrank.grow(problem, small, 8, svd, "weights", g, bar)
    torch.testing.assert_close(large.v @ (large.v.T @ small.v), small.v)
    torch.testing.assert_close(large.v.T @ large.v, torch.eye(8).double())
    torch.testing.assert_close(problem.normal(large.v), large.image)


@pytest.mark.parametrize("kept", [True, False], ids=["factors kept", "factors computed anew"])
def test_batches_give_the_same_posterior(kept: bool, monkeypatch: pytest.MonkeyPatch):
    case = by_name("two outputs")
    if not kept:
        monkeypatch.setattr(tangent_module, "free_bytes", lambda device: 0)
    monkeypatch.setattr(lowrank, "choose_side", lambda problem, columns, solved: "weights")
    whole = fitted(case, ntkgp.LowRank(rank=6, tail=3, solver=TIGHT))
    loader = DataLoader(TensorDataset(case.x, case.y), batch_size=5)
    options = {"noise_var": case.noise_var, "method": ntkgp.LowRank(rank=6, tail=3, solver=TIGHT)}
    parts = ntkgp.fit(case.module(), loader, generator=torch.Generator().manual_seed(0), **options)
    assert isinstance(parts, LowRankPosterior)
    one, other = whole.predict(case.query), parts.predict(case.query)
    torch.testing.assert_close(one.mean, other.mean, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(one.variance, other.variance, rtol=1e-4, atol=1e-9)
    assert parts.problem.batches is not None
    assert (parts.problem.batches.passes == 3) == kept  # looking, checking, and one pass for all factors


@pytest.mark.parametrize("method", [ntkgp.Exact(), ntkgp.TrainedNetworks(rank=2)], ids=["exact", "trained"])
def test_batches_for_methods_that_need_all_points(method: ntkgp.Exact | ntkgp.TrainedNetworks):
    case = by_name("paper mlp")
    batches = list(zip(case.x.split(5), case.y.split(5), strict=True))
    whole, parts = case.fit(method), ntkgp.fit(case.module(), batches, noise_var=case.noise_var, method=method)
    torch.testing.assert_close(whole.predict(case.query).variance, parts.predict(case.query).variance)


def test_batches_that_cannot_be_used():
    case = by_name("paper mlp")
    pairs = list(zip(case.x.split(5), case.y.split(5), strict=True))
    with pytest.raises(TypeError, match="used up after one pass"):
        ntkgp.fit(case.module(), iter(pairs), noise_var=0.1)

    class Singles:
        def __iter__(self):
            return iter(case.x.split(5))

    with pytest.raises(TypeError, match="each batch must be a pair"):
        ntkgp.fit(case.module(), Singles(), noise_var=0.1)  # pyright: ignore[reportArgumentType]

    class Shrinking:
        passes = 0

        def __iter__(self):
            self.passes += 1
            return iter(pairs if self.passes <= 3 else pairs[:1])

    with pytest.raises(ValueError, match="batches must stay the same"):
        ntkgp.fit(case.module(), Shrinking(), noise_var=0.1, method=ntkgp.LowRank(rank=2))


def test_progress_is_shown_on_request_only(capsys: pytest.CaptureFixture[str]):
    case = by_name("paper mlp")
    for method in (ntkgp.LowRank(rank=2), ntkgp.LowRank(rtol=0.5)):
        case.fit(method)
        assert capsys.readouterr().err == ""
        case.fit(method, progress=True)
        shown = capsys.readouterr().err
        assert "finding the head" in shown
        assert "solving" in shown


def test_a_tolerance_is_met_where_the_network_is_dead():
    """At x < 0 all derivatives are zero: nothing is uncertain there, and no bracket wide."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False)).double()
    for p in net.parameters():
        nn.init.ones_(p)
    x = torch.linspace(-1, 1, 5, dtype=torch.float64).unsqueeze(1)
    p = ntkgp.fit(net, x, x[:, 0], noise_var=0.1, method=ntkgp.LowRank(rtol=0.1)).predict(x)
    assert bool((p.variance[:2] == 0).all())
    assert bool((p.upper - p.lower <= 0.1 * p.upper).all())


@pytest.mark.parametrize("method", [ntkgp.LowRank(rank=1, tail=2), ntkgp.LowRank(rtol=0.1)], ids=["rank", "rtol"])
def test_a_network_that_is_dead_everywhere(method: ntkgp.LowRank):
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 2, bias=False)).double()
    for p in net.parameters():
        nn.init.constant_(p, -1.0)
    x = torch.tensor([[1.0]], dtype=torch.float64)
    p = ntkgp.fit(net, x, torch.ones(1, 2, dtype=torch.float64), noise_var=0.1, method=method).predict(x)
    assert bool((torch.stack([p.mean, p.variance, p.lower, p.upper]) == 0).all())


def test_rank_or_rtol():
    case = by_name("paper mlp")
    for options in ({}, {"rank": 2, "rtol": 0.1}):
        with pytest.raises(ValueError, match="either a rank or an rtol"):
            ntkgp.LowRank(**options)
    with pytest.raises(ValueError, match="rank must be at most"):
        case.fit(ntkgp.LowRank(rank=13))


@pytest.mark.parametrize("columns", [1, 3])
def test_cgls_solves_what_a_dense_solver_solves(columns: int):
    g = torch.Generator().manual_seed(0)
    a = torch.randn(40, 25, generator=g, dtype=torch.float64) * torch.logspace(3, -2, 25, dtype=torch.float64)
    c = torch.randn(25, columns, generator=g, dtype=torch.float64)
    gram = a.T @ a
    solution = ntkgp.CGLS(tol=1e-12).solve(lambda v: gram @ v, c, precondition=lambda r: r)
    assert solution.converged
    assert error(solution.x, torch.linalg.solve(gram + torch.eye(25).double(), c)) <= 1e-8


def test_cgls_says_when_it_stops_early():
    gram = torch.diag(torch.logspace(0, 6, 30, dtype=torch.float64))
    with pytest.warns(ntkgp.NumericalWarning, match="after 3 iterations"):
        solution = ntkgp.CGLS(tol=1e-10, max_iterations=3).solve(gram.matmul, torch.ones(30, 1).double(), lambda r: r)
    assert not solution.converged


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
    posterior = fitted(case, ntkgp.LowRank(rank=3, tail=2))
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
