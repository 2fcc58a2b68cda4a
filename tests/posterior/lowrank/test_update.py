"""A low-rank posterior that has seen more: the mean is right, the bracket holds and stays tight."""

from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import ntkgp
from ntkgp.linalg.head import Head
from ntkgp.posterior.lowrank.head_search import HeadSearch, Tolerance, bracket_width
from ntkgp.posterior.lowrank.posterior import LowRankPosterior
from ntkgp.posterior.lowrank.side import Normal
from ntkgp.storage.stages import Stages
from ntkgp.tangent.tangent import Tangent
from tests.support.cases import DOUBLE, Case, by_name, every, rank_of, reference
from tests.support.helpers import TIGHT, seeded
from tests.support.oracle import error
from tests.support.typechecker import repeated
from tests.support.updates import grid, in_steps, network, part


def test_a_head_full_of_directions_that_do_not_matter_is_found_anew():
    """Of as many directions as there are points: the head of an update may hold some that the kernel never saw."""
    case = by_name("paper mlp")
    posterior = case.fit(ntkgp.LowRank(rank=2), generator=seeded())
    assert isinstance(posterior, LowRankPosterior)
    problem, nowhere = posterior.problem, Stages(None, {}, None, torch.device("cpu"))
    any_directions = torch.linalg.qr(
        torch.randn(problem.operators.shape[1], problem.operators.shape[0], generator=seeded(), dtype=torch.float64)
    )[0]
    full = Head.of(problem.operators.normal, any_directions, problem.operators.normal(any_directions), problem.operators.trace)
    assert bracket_width(problem, full, case.x) > 0.1
    svd = ntkgp.LowRank(rtol=0.1).svd
    search = HeadSearch(problem, Normal(problem), svd, "weights", seeded(), False, nowhere)
    head, width = search.until_tight(Tolerance(0.1, case.x, 4096), full)
    assert head.rank == full.rank
    assert width <= 0.1


@pytest.mark.usefixtures("types_of_typical_cases")
@every(DOUBLE)
@pytest.mark.parametrize("tail", [0, 2])
def test_low_rank_mean_and_bracket(case: Case, tail: int):
    truth = reference(case)
    rank = min(3, rank_of(part(case, slice(0, len(case.x) // 2))) - 1)
    posterior = in_steps(case, ntkgp.LowRank(rank=rank, tail=tail, solver=TIGHT))
    assert isinstance(posterior, LowRankPosterior)
    p, slack = posterior.predict(case.query), 1e-9 * truth.prior.diagonal()
    assert posterior.head.rank == rank
    assert error(p.mean.flatten(), truth.mean) <= 1e-7
    assert bool((p.lower.flatten() <= truth.variance + slack).all())
    assert bool((truth.variance <= p.upper.flatten() + slack).all())
    assert bool(((p.lower <= p.variance) & (p.variance <= p.upper)).all())


@pytest.mark.usefixtures("types_of_typical_cases")
@every(DOUBLE)
def test_low_rank_stays_exact_at_full_rank(case: Case):
    truth, first = reference(case), part(case, slice(0, len(case.x) // 2))
    posterior = in_steps(case, ntkgp.LowRank(rank=rank_of(first), solver=TIGHT))
    p = posterior.predict(case.query)
    assert error(p.variance.flatten(), truth.variance) <= 1e-7
    assert error(posterior.covariance(case.query), truth.covariance) <= 1e-7


def test_fifty_updates_keep_the_bracket_certified_and_tight():
    (x, y), net, query = grid(150), network(), grid(30, seed=1)[0] * 1.5
    method = ntkgp.LowRank(rank=24, tail=2, solver=ntkgp.CGLS(tol=1e-8))
    posterior = ntkgp.fit(net, x[:100], y[:100], noise_var=0.01, method=method, generator=seeded())
    for k in repeated(range(100, 150)):
        posterior = posterior.update(x[k : k + 1], y[k : k + 1], generator=seeded(k))
    truth = ntkgp.fit(net, x, y, noise_var=0.01, method=ntkgp.Exact()).predict(query)
    fresh = ntkgp.fit(net, x, y, noise_var=0.01, method=method, generator=seeded()).predict(query)
    p = posterior.predict(query)
    assert error(p.mean, truth.mean) <= 1e-6
    slack = 1e-9 * truth.variance.max()
    assert bool((p.lower <= truth.variance + slack).all())
    assert bool((truth.variance <= p.upper + slack).all())
    assert float((p.upper - p.lower).sum()) <= 2 * float((fresh.upper - fresh.lower).sum())
    assert isinstance(posterior, LowRankPosterior)
    assert float((posterior.head.v.T @ posterior.head.v - torch.eye(24).double()).abs().max()) <= 1e-12
    assert error(posterior.head.image, posterior.problem.operators.normal(posterior.head.v)) <= 1e-11


def test_a_loose_head_is_looked_for_again():
    """Points of another region, a hundred times as many: what the old head leaves out has grown."""
    (x, y), net = grid(400), network()
    few = ntkgp.fit(net, x[:10] * 0.01, y[:10], noise_var=0.01, method=ntkgp.LowRank(rank=4, solver=TIGHT), generator=seeded())
    many = few.update(x[10:], y[10:])
    assert isinstance(many, LowRankPosterior)
    assert many.refined == 1
    fresh = ntkgp.fit(
        net, torch.cat([x[:10] * 0.01, x[10:]]), y, noise_var=0.01, method=ntkgp.LowRank(rank=4), generator=seeded()
    )
    assert isinstance(fresh, LowRankPosterior)
    assert many.head.bracket.slack <= 2 * fresh.head.bracket.slack


def test_a_wrong_image_is_noticed():
    (x, y), net = grid(60), network()
    posterior = ntkgp.fit(net, x[:50], y[:50], noise_var=0.01, method=ntkgp.LowRank(rank=4), generator=seeded())
    assert isinstance(posterior, LowRankPosterior)
    bad = replace(posterior, head=replace(posterior.head, image=posterior.head.image * (1 + 1e-6)))
    assert bad.update(x[50:51], y[50:51]).refined == 1
    assert posterior.update(x[50:51], y[50:51]).refined == 0


def test_the_solver_starts_from_the_old_solution():
    (x, y), net = grid(301), network()
    method = ntkgp.LowRank(rank=8, tail=3)
    posterior, fresh = (
        ntkgp.fit(net, x[:n], y[:n], noise_var=0.01, method=method, generator=seeded()) for n in (300, 301)
    )  # fmt: skip
    more = posterior.update(x[300:], y[300:])
    assert isinstance(more, LowRankPosterior)
    assert isinstance(fresh, LowRankPosterior)
    assert more.solution.converged
    assert more.solution.iterations < 0.8 * fresh.solution.iterations


def test_rtol_is_held():
    (x, y), net = grid(150), network()
    method = ntkgp.LowRank(rtol=0.3)
    posterior = ntkgp.fit(net, x[:60] * 0.3, y[:60], noise_var=0.05, method=method, generator=seeded())
    more = posterior.update(x[60:], y[60:], generator=seeded(1))
    assert isinstance(posterior, LowRankPosterior)
    assert isinstance(more, LowRankPosterior)
    assert more.bracket_width is not None
    assert more.bracket_width <= 0.3
    assert more.head.rank > posterior.head.rank


@pytest.mark.parametrize("name", ["noise per output"])
def test_the_tail_stays_unbiased(name: str):
    """Half of the draws' noise came with the fit, half with the update: their mean is within 4 standard errors."""
    case = by_name(name)
    posterior = in_steps(case, ntkgp.LowRank(rank=2, tail=2000))
    assert isinstance(posterior, LowRankPosterior)
    jacobian = posterior.problem.operators.tangent.at(case.query)
    squares = jacobian.matmat(posterior.tail).square()
    estimate = jacobian.diag() - jacobian.matmat(posterior.explained).square().sum(dim=1) - squares.mean(dim=1)
    off = (estimate - reference(case).variance).abs() / (squares.std(dim=1) / 2000**0.5)
    assert float(off.max()) <= 4
    assert float((squares.mean(dim=1) / (squares.std(dim=1) / 2000**0.5)).max()) > 8  # there is something to be found


@pytest.mark.parametrize("kept", [True, False])
def test_data_in_batches(kept: bool, monkeypatch: pytest.MonkeyPatch):
    if not kept:
        monkeypatch.setattr(Tangent, "_fits", lambda *_: False)
    (x, y), net = grid(90), network()
    loader = DataLoader(TensorDataset(x[:60], y[:60]), batch_size=16)
    method = ntkgp.LowRank(rank=5, solver=TIGHT)
    posterior = ntkgp.fit(net, loader, noise_var=0.01, method=method, generator=seeded())
    for new in ((x[60:61], y[60:61]), (x[61:62], y[61:62]), (DataLoader(TensorDataset(x[62:], y[62:]), batch_size=10), None)):
        posterior = posterior.update(*new)
    truth = ntkgp.fit(net, x, y, noise_var=0.01, method=ntkgp.Exact()).predict(x)
    p = posterior.predict(x)
    assert error(p.mean, truth.mean) <= 1e-7
    assert bool(((p.lower <= truth.variance + 1e-10) & (truth.variance <= p.upper + 1e-10)).all())
    assert isinstance(posterior, LowRankPosterior)
    assert posterior.problem.data.batches is not None
    again = posterior.problem.data.batches.joined()
    assert torch.equal(again[0], x)
    assert torch.equal(again[1], y)
