"""Posterior draws by trained networks: exact in the head, unbiased in the rest, with an interval that holds."""

import pytest
import torch

import ntkgp
from ntkgp.linalg.chi_squared import variance_interval
from ntkgp.posterior.trained.posterior import TrainedPosterior
from tests.support import analytic
from tests.support.cases import DOUBLE, Case, by_name, every, reference
from tests.support.helpers import seeded
from tests.support.oracle import error

DRAWN = ntkgp.posterior.DrawnCovariance()
each_case = pytest.mark.parametrize("name", ["paper mlp", "noise per output", "huge noise"])


@every(DOUBLE)
def test_the_head_is_exact(case: Case):
    """With all directions and closed-form predictors, and draws for the directions that no data sees."""
    truth = reference(case)
    plan = analytic.plan(case, DRAWN, min(truth.train.shape), 2000, seeded())
    rows = plan.problem.operators.at(case.query)
    head, rest = plan.drawn(rows, analytic.solved(plan, case.query))
    left = truth.covariance - head @ head.T  # of the weights that no data sees: drawn from the prior
    v = plan.svd.v
    outside = analytic.prior(plan, case.query) - rows.matmat(v) @ rows.matmat(v).T
    assert error(head @ head.T + outside, truth.covariance) <= 1e-8
    scale = left.diagonal().clamp_min(1e-9 * truth.prior.diagonal()).sqrt()
    off = (rest @ rest.T - left).abs() / (scale.unsqueeze(0) * scale.unsqueeze(1))
    assert float(off.max()) <= 5 * (2 / 2000) ** 0.5


@each_case
def test_the_rest_is_unbiased_and_relative_to_the_variance(name: str):
    """Over 3000 draws beside a head of two: within 5 standard errors of exact, each relative to the variance itself."""
    case, draws = by_name(name), 3000
    truth, plan = reference(case), analytic.plan(case, DRAWN, 2, draws, seeded(1))
    rows = plan.problem.operators.at(case.query)
    head, rest = plan.drawn(rows, analytic.solved(plan, case.query))
    covariance = head @ head.T + rest @ rest.T
    scale = truth.variance.sqrt()
    off = (covariance - truth.covariance).abs() / (scale.unsqueeze(0) * scale.unsqueeze(1))
    assert float(off.max()) <= 5 * (2 / draws) ** 0.5
    assert float((head.square().sum(dim=1) / truth.variance).min()) < 0.9  # there is something to draw


def test_by_trained_networks(path):
    """Sixty draws of real networks: the std to √(1/2T), the exact variance in the bracket, the same bits from a file."""
    case = by_name("paper mlp")
    method = ntkgp.TrainedNetworks(
        rank=4, tail=60, covariance=ntkgp.posterior.DrawnCovariance(0.999), trainer=ntkgp.AcceleratedGD(tol=1e-3)
    )
    posterior = case.fit(method, generator=seeded())
    assert isinstance(posterior, TrainedPosterior)
    assert posterior.std_error == pytest.approx(120**-0.5)
    truth, p = reference(case), posterior.predict(case.query)
    assert p.confidence == 0.999
    assert bool(((p.lower <= truth.variance) & (truth.variance <= p.upper)).all())
    assert float((p.std / truth.variance.sqrt() - 1).abs().max()) <= 4 * 120**-0.5
    parts, rows = posterior._evaluate(case.query)[1], posterior.problem.operators.at(case.query)
    head, tail = (part.square().sum(dim=1) for part in posterior.plan.drawn(rows, parts))
    low, high = variance_interval(60, 0.999)
    assert bool((p.lower >= (head + low * tail) * (1 - 1e-9)).all())
    assert bool((p.upper <= (head + high * tail) * (1 + 1e-9)).all())
    covariance = posterior.covariance(case.query)
    assert error(covariance.diagonal(), head + tail) <= 1e-12
    posterior.save(path)
    loaded = ntkgp.load(path, case.module())
    assert torch.equal(loaded.predict(case.query).variance, p.variance)
    assert loaded.predict(case.query).confidence == 0.999


def test_without_a_tail_it_is_the_upper_bound():
    case = by_name("paper mlp")
    bounds = [
        case.fit(ntkgp.TrainedNetworks(rank=3, trainer=ntkgp.AcceleratedGD(tol=0.01), covariance=rule), generator=seeded())
        for rule in (ntkgp.posterior.DrawnCovariance(), ntkgp.posterior.TightCovariance())
    ]
    one, other = (posterior.predict(case.query) for posterior in bounds)
    assert one.confidence == other.confidence == 1.0
    assert torch.equal(one.variance, other.variance)
    assert bounds[0].std_error is None


def test_more_data():
    """An update draws noise for the new points and keeps the draws of the weights."""
    case = by_name("paper mlp")
    method = ntkgp.TrainedNetworks(rank=4, tail=40, covariance=DRAWN, trainer=ntkgp.AcceleratedGD(tol=1e-3))
    half = ntkgp.fit(case.module(), case.x[:6], case.y[:6], noise_var=0.01, method=method, generator=seeded())
    p, truth = half.update(case.x[6:], case.y[6:], generator=seeded(1)).predict(case.query), reference(case)
    assert bool(((p.lower <= truth.variance) & (truth.variance <= p.upper)).all())
    assert float((p.std / truth.variance.sqrt() - 1).abs().max()) <= 4 * 80**-0.5
