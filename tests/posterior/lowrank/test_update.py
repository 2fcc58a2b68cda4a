"""A low-rank posterior that has seen more: the mean is right, the bracket holds and stays tight."""

from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import ntkgp
from ntkgp.posterior.lowrank.posterior import LowRankPosterior
from ntkgp.posterior.lowrank.side import Normal
from ntkgp.tangent.tangent import Tangent
from tests.support.cases import DOUBLE, Case, by_name, every, rank_of, reference
from tests.support.helpers import TIGHT, seeded
from tests.support.oracle import error
from tests.support.typechecker import repeated
from tests.support.updates import grid, in_steps, network, part


@pytest.mark.usefixtures("types_of_typical_cases")
@every(DOUBLE)
@pytest.mark.parametrize("draws", [0, 16])
def test_low_rank_mean_and_bracket(case: Case, draws: int):
    truth = reference(case)
    rank = min(3, rank_of(part(case, slice(0, len(case.x) // 2))) - 1)
    posterior = in_steps(case, ntkgp.LowRank(rank=rank, draws=draws, solver=TIGHT))
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
    method = ntkgp.LowRank(rank=24, draws=2, solver=ntkgp.CGLS(tol=1e-8))
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


def test_the_solver_starts_from_the_old_solution(monkeypatch: pytest.MonkeyPatch):
    """One new point among thousands changes little: few columns are multiplied, and not often."""
    (x, y), net = grid(3000), network()
    method, columns, product = ntkgp.LowRank(rank=64, draws=16), [0], Normal.__call__

    def counted(normal: Normal, v: torch.Tensor) -> torch.Tensor:
        columns[0] += v.shape[1]
        return product(normal, v)

    monkeypatch.setattr(Normal, "__call__", counted)
    posterior = ntkgp.fit(net, x[:-1], y[:-1], noise_var=0.01, method=method, generator=seeded())
    fresh, columns[0] = columns[0], 0
    more = posterior.update(x[-1:], y[-1:])
    assert isinstance(more, LowRankPosterior)
    assert more.solution.converged
    assert columns[0] < 0.4 * fresh


@pytest.mark.parametrize("name", ["noise per output"])
def test_the_draws_stay_posterior_draws(name: str):
    """Half of their noise came with the fit, half with the update: their mean square is within 4 standard errors."""
    case = by_name(name)
    truth, posterior = reference(case), in_steps(case, ntkgp.LowRank(rank=2, draws=2000, solver=TIGHT))
    assert isinstance(posterior, LowRankPosterior)
    assert posterior.draws == 2000
    rows = posterior.problem.operators.at(case.query)
    ratio = rows.matmat(posterior.solution.x[:, 1:]).square().mean(dim=1) / truth.variance
    assert float((ratio - 1).abs().max()) <= 4 * (2 / 2000) ** 0.5
    drawn = rows.matmat(posterior.rest).square().mean(dim=1)
    known = posterior.head.inside(rows.matmat(posterior.head.v))
    left = truth.variance - known  # what the head leaves to the draws
    assert float((drawn / left - 1).abs().max()) <= 4 * (2 / 2000) ** 0.5


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
