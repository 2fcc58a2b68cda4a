"""The variance by posterior draws: unbiased for any head, with an exact interval, to any accuracy that is asked for."""

import math
from dataclasses import replace

import pytest
import torch

import ntkgp
from ntkgp.linalg.chi_squared import variance_interval
from ntkgp.posterior.lowrank.posterior import LowRankPosterior
from tests.support.cases import DOUBLE, Case, by_name, every, rank_of, reference
from tests.support.helpers import TIGHT, seeded
from tests.support.lowrank import fitted
from tests.support.oracle import error
from tests.support.updates import grid, network

POOR = ntkgp.linalg.RandomizedSVD(oversample=0, power=0, tol=None)


@pytest.mark.parametrize("svd", [None, POOR], ids=["good head", "poor head"])
@pytest.mark.parametrize("name", ["noise per output", "prior variance per layer", "more points than parameters"])
def test_the_rest_is_drawn_from_what_the_head_leaves(name: str, svd: ntkgp.linalg.RandomizedSVD | None):
    """Known part plus covariance of the draws is the exact covariance, for a head that has barely been looked for too."""
    case, draws = by_name(name), 4000
    method = ntkgp.LowRank(rank=3, draws=draws, solver=TIGHT)
    truth, posterior = reference(case), fitted(case, method if svd is None else replace(method, svd=svd))
    rows = posterior.problem.operators.at(case.query)
    inside, rest = rows.matmat(posterior.head.v) * posterior.head.deviations, rows.matmat(posterior.rest)
    left = truth.covariance - inside @ inside.T
    spread = left.diagonal().clamp_min(1e-12 * truth.prior.diagonal()).sqrt()
    off = (rest @ rest.T / draws - left).abs() / (spread.unsqueeze(0) * spread.unsqueeze(1))
    assert float(off.max()) <= 5 * (2 / draws) ** 0.5
    assert float((left.diagonal() / truth.variance).max()) > 0.05  # there is something to draw
    assert error(posterior.covariance(case.query), inside @ inside.T + rest @ rest.T / draws) <= 1e-12


@pytest.mark.usefixtures("types_of_typical_cases")
@every(DOUBLE)
def test_the_error_of_the_std_is_the_promised_one(case: Case):
    """Root mean square over the queries of the relative error: √(1/2T), at most thrice that on a dozen queries."""
    posterior = fitted(case, ntkgp.LowRank(rank=min(2, rank_of(case)), draws=200, solver=TIGHT))
    truth, p = reference(case), posterior.predict(case.query)
    relative = (p.variance.flatten() / truth.variance).sqrt() - 1
    promised = posterior.std_error
    assert promised in (0.0, pytest.approx(0.05))
    assert float(relative.square().mean().sqrt()) <= 3 * 0.05
    assert p.confidence == 0.999


@pytest.mark.parametrize("confidence", [0.5, 0.9])
def test_the_interval_holds_as_often_as_it_says(confidence: float, unchecked: None):
    """Over 600 fits: the true variance lies in the bracket with the stated probability, within 4 standard errors.

    The head of one direction leaves nearly all of the variance to the draws, so the certified bracket decides nothing.
    """
    (x, y), net = grid(25), network()
    at = grid(3, seed=1)[0] * 2
    truth = ntkgp.fit(net, x, y, noise_var=0.05, method=ntkgp.Exact()).predict(at).variance
    posterior = ntkgp.fit(
        net, x, y, noise_var=0.05, method=ntkgp.LowRank(rank=1, draws=600 * 6, solver=TIGHT), generator=seeded()
    )
    assert isinstance(posterior, LowRankPosterior)
    rows, head = posterior.problem.operators.at(at), posterior.head
    known = head.inside(rows.matmat(head.v)).unsqueeze(1)
    drawn = rows.matmat(posterior.rest).square().unflatten(1, (600, 6)).mean(dim=2)
    low, high = variance_interval(6, confidence)
    held = ((known + low * drawn <= truth.unsqueeze(1)) & (truth.unsqueeze(1) <= known + high * drawn)).double().mean(dim=1)
    assert float((held - confidence).abs().max()) <= 4 * (confidence * (1 - confidence) / 600) ** 0.5
    # And predict shows that interval, where the certified bracket is wider.
    few = ntkgp.fit(
        net, x, y, noise_var=0.05, method=ntkgp.LowRank(rank=1, draws=6, confidence=confidence, solver=TIGHT),
        generator=seeded(),
    )  # fmt: skip
    assert isinstance(few, LowRankPosterior)
    p, mean_square = few.predict(at), rows.matmat(few.rest).square().mean(dim=1)
    known = few.head.inside(rows.matmat(few.head.v))
    assert error(p.variance, known + mean_square) <= 1e-10
    prior = rows.diag()
    certified = few.head.bracket.lower(rows.matmat(few.head.v), prior), few.head.upper(rows.matmat(few.head.image), prior)
    assert error(p.lower, torch.maximum(known + low * mean_square, certified[0])) <= 1e-5
    assert error(p.upper, torch.minimum(known + high * mean_square, certified[1])) <= 1e-5
    assert bool((p.lower > 2 * certified[0]).all())
    assert p.confidence == confidence


def test_more_draws_go_on_from_where_it_was():
    """The first columns stay as they are, and the accuracy is that of all."""
    (x, y), net = grid(60), network()
    posterior = ntkgp.fit(net, x, y, noise_var=0.05, method=ntkgp.LowRank(rank=4, draws=8), generator=seeded())
    assert isinstance(posterior, LowRankPosterior)
    more = posterior.more_draws(1992, generator=seeded(1))
    assert more.draws == 2000
    assert more.std_error == pytest.approx(1 / 4000**0.5)
    assert torch.equal(more.solution.x[:, :9], posterior.solution.x)
    assert torch.equal(more.mean(x), posterior.mean(x))
    truth = ntkgp.fit(net, x, y, noise_var=0.05, method=ntkgp.Exact()).predict(x).variance
    ratio = more.predict(x).variance / truth
    assert float((ratio - 1).abs().max()) <= 5 * (2 / 2000) ** 0.5
    assert float(widths(more, x).mean()) < 0.2 * float(widths(posterior, x).mean())
    assert posterior.draws == 8  # the old one stays


def widths(posterior: LowRankPosterior, x: torch.Tensor) -> torch.Tensor:
    p = posterior.predict(x)
    return p.upper - p.lower


def test_rtol_sets_the_number_of_draws():
    (x, y), net = grid(400), network()
    posterior = ntkgp.fit(net, x, y, noise_var=0.05, method=ntkgp.LowRank(rank=8, rtol=0.03), generator=seeded())
    assert isinstance(posterior, LowRankPosterior)
    assert posterior.draws == math.ceil(0.5 / 0.03**2)
    truth = ntkgp.fit(net, x, y, noise_var=0.05, method=ntkgp.Exact()).predict(x)
    relative = posterior.predict(x).std / truth.std - 1
    assert float(relative.square().mean().sqrt()) <= 2 * 0.03


def test_rtol_takes_all_directions_where_they_cost_less():
    """Twelve observations: a head of twelve directions is exact, and cheaper than hundreds of draws."""
    case = by_name("paper mlp")
    posterior = fitted(case, ntkgp.LowRank(rtol=0.01))
    assert posterior.head.rank == 12
    assert posterior.draws == 0
    assert posterior.std_error == 0.0
    p = posterior.predict(case.query)
    assert error(p.variance, reference(case).variance) <= 1e-8
    assert p.confidence == 1.0


def test_an_accurate_std_without_an_accurate_solver():
    """The solver stops when the std cannot change visibly, and the interval allows for what it has left."""
    (x, y), net = grid(400), network()
    truth = ntkgp.fit(net, x, y, noise_var=0.001, method=ntkgp.Exact()).predict(x)
    loose, tight = (
        ntkgp.fit(net, x, y, noise_var=0.001, method=ntkgp.LowRank(rank=8, draws=64, solver=solver), generator=seeded())
        for solver in (ntkgp.CGLS(), TIGHT)
    )
    assert isinstance(loose, LowRankPosterior)
    assert isinstance(tight, LowRankPosterior)
    assert loose.solution.iterations < 0.7 * tight.solution.iterations
    errors = loose.solution.errors[1:]
    assert float(errors.max()) <= 0.5 / 128**0.5
    assert float(errors.min()) > 0
    # The bound on the error holds: nowhere are the draws further apart, in units of the std, than it says.
    gap = loose.problem.operators.at(x).matmat(loose.solution.x[:, 1:] - tight.solution.x[:, 1:]).abs() / truth.std.unsqueeze(1)
    assert bool((gap <= errors + 1e-6).all())
    p = loose.predict(x)
    assert float(((p.lower <= truth.variance) & (truth.variance <= p.upper)).double().mean()) >= 0.99
    assert error(p.std, truth.std) <= 0.13
    with pytest.raises(ValueError, match="either draws or an rtol"):
        ntkgp.LowRank(draws=3, rtol=0.1)
    with pytest.raises(ValueError, match="confidence must lie between 0 and 1"):
        ntkgp.LowRank(rank=3, confidence=99.9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_head_with_all_directions_is_exact_and_not_only_a_bound(dtype: torch.dtype):
    """In float32 the certified bound has room for rounding, which is far more than the variance where the prior is large."""
    g = seeded()
    x, net = torch.randn(60, 2, generator=g), network().double()
    y, new = x[:, 0].sin(), torch.randn(40, 2, generator=g)
    method = ntkgp.LowRank(rank=60, draws=0, dtype=dtype)
    posterior = ntkgp.fit(net, x, y, noise_var=0.01, prior_var=100.0, method=method, generator=g)
    exact = ntkgp.fit(net, x, y, noise_var=0.01, prior_var=100.0, method=ntkgp.Exact()).predict(new)
    p = posterior.predict(new)
    assert posterior.std_error == 0
    assert bool(((p.lower <= p.variance) & (p.variance <= p.upper)).all())
    assert error(p.std, exact.std) <= (1e-2 if dtype == torch.float32 else 1e-6)


def test_a_head_of_all_directions_must_be_worth_its_memory():
    assert ntkgp.LowRank(rtol=0.01).settled(9_000, 100_000) == (9_000, 0)
    assert ntkgp.LowRank(rtol=0.01).settled(60_000, 100_000) == (1_024, 5_000)
    assert ntkgp.LowRank().settled(1_500, 100_000) == (1_500, 0)


def test_an_update_solves_a_block_of_columns_at_a_time(monkeypatch: pytest.MonkeyPatch):
    posterior = by_name("more points than parameters").fit(ntkgp.LowRank(rank=3, draws=300), generator=seeded())
    widths, solve = [], ntkgp.CGLS.solve

    def counted(self: ntkgp.CGLS, system: object, c: torch.Tensor, **options: object):
        widths.append(c.shape[1])
        return solve(self, system, c, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(ntkgp.CGLS, "solve", counted)
    case = by_name("more points than parameters")
    more = posterior.update(case.x[:2], case.y[:2], noise_var=0.1, generator=seeded())
    assert isinstance(more, LowRankPosterior)
    assert more.draws == 300
    assert widths == [257, 44]
    widths.clear()
    more.sharpen(case.query[:1].repeat(300, *[1] * (case.query.ndim - 1)))
    assert widths
    assert max(widths) <= 256


@pytest.mark.parametrize("method", [ntkgp.LowRank(rank=3, draws=2), ntkgp.Exact("weights"), ntkgp.Exact("kernel")])
def test_a_seed_is_not_a_generator(method: ntkgp.LowRank | ntkgp.Exact):
    posterior = by_name("paper mlp").fit(method, generator=seeded())
    with pytest.raises(TypeError, match=r"generator must be a torch\.Generator"):
        posterior.sample(2, generator=7)  # pyright: ignore[reportArgumentType]
