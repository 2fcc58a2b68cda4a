"""An exact posterior that has seen more equals a fresh fit to rounding, and reuses the factor it has."""

from dataclasses import replace

import pytest
import torch

import ntkgp
from ntkgp.linalg import growing_cholesky
from ntkgp.posterior.exact import factorise, update
from ntkgp.posterior.exact.posterior import ExactPosterior
from tests.support.cases import Case, every, reference
from tests.support.helpers import seeded
from tests.support.oracle import error
from tests.support.typechecker import repeated
from tests.support.updates import grid, in_steps, network


@every()
def test_exact_is_equal_to_a_fresh_fit_and_to_the_oracle(case: Case):
    # float32 residuals of a function as prior mean are rounded one by one; noise of 1e-8 loses half of the digits to begin with
    tolerance = 1e-5 if case.dtype == torch.float32 else 1e-6 if "tiny" in case.name else 1e-8
    posterior, fresh, truth = in_steps(case, ntkgp.Exact()), case.fit(ntkgp.Exact()), reference(case)
    assert isinstance(posterior, ExactPosterior)
    assert isinstance(fresh, ExactPosterior)
    assert posterior.refactored == 0
    assert posterior.backward_error <= 100 * torch.finfo(torch.float64).eps
    a, b = posterior.predict(case.query), fresh.predict(case.query)
    assert error(a.mean, b.mean) <= tolerance
    assert error(a.mean.flatten(), truth.mean) <= tolerance
    assert error(posterior.covariance(case.query), fresh.covariance(case.query)) <= tolerance
    assert error(posterior.covariance(case.query), truth.covariance) <= max(tolerance, 1e-8)
    assert posterior.log_marginal_likelihood == pytest.approx(truth.log_marginal_likelihood, rel=1e-6)
    for one, other in zip(posterior.leave_one_out(), fresh.leave_one_out(), strict=True):
        assert error(one, other) <= max(tolerance, 1e-7)


def test_five_hundred_single_updates_do_not_drift():
    (x, y), net = grid(550), network()
    posterior = ntkgp.fit(net, x[:50], y[:50], noise_var=1e-3)
    for k in repeated(range(50, 550)):
        posterior = posterior.update(x[k : k + 1], y[k : k + 1])
    fresh, query = ntkgp.fit(net, x, y, noise_var=1e-3), grid(40, seed=1)[0] * 2
    assert isinstance(posterior, ExactPosterior)
    assert isinstance(fresh, ExactPosterior)
    a, b = posterior.predict(query), fresh.predict(query)
    assert error(a.mean, b.mean) <= 1e-8
    assert error(a.variance, b.variance) <= 1e-8
    assert error(posterior.covariance(query), fresh.covariance(query)) <= 1e-8
    assert error(posterior.factor, fresh.factor) <= 1e-10
    assert posterior.refactored == 0
    assert posterior.cholesky.count < 550 - 50  # it was made one piece more than once


def test_an_update_does_not_touch_what_is_there(monkeypatch: pytest.MonkeyPatch):
    """One point more writes one row: the large factor and the layer factors of the fit are shared, not copied."""
    (x, y), net = grid(300), network()
    posterior = ntkgp.fit(net, x[:290], y[:290], noise_var=0.01)
    assert isinstance(posterior, ExactPosterior)
    one = posterior.update(x[290:291], y[290:291])
    two = one.update(x[291:292], y[291:292])
    assert one.cholesky.base is posterior.cholesky.base
    assert two.cholesky.base is posterior.cholesky.base
    assert two.cholesky.left is one.cholesky.left
    assert two.problem.operators.jacobian._sources[0] is posterior.problem.operators.jacobian._sources[0]
    monkeypatch.setattr(update, "factorise_problem", lambda *_: pytest.fail("factorised again"))
    two.update(x[292:], y[292:])


def test_a_damaged_factor_is_noticed_and_computed_anew():
    (x, y), net = grid(60), network()
    posterior, fresh = (ntkgp.fit(net, x[:n], y[:n], noise_var=0.01) for n in (50, 60))
    assert isinstance(posterior, ExactPosterior)
    for factor in (1 + 1e-6, 0.1):  # the residuals say so; the new rows have no factor at all
        bad = replace(posterior, cholesky=replace(posterior.cholesky, base=posterior.cholesky.base * factor))
        mended = bad.update(x[50:], y[50:])
        assert mended.refactored == 1
        assert error(mended.predict(x).mean, fresh.predict(x).mean) <= 1e-9
        assert mended.update(x[:1], y[:1]).refactored == 1


def test_old_rows_are_looked_at_when_the_factor_is_moved(monkeypatch: pytest.MonkeyPatch):
    """A wrong answer at points that came long ago does not show in the rows of new ones."""
    (x, y), net = grid(60), network()
    posterior = ntkgp.fit(net, x[:50], y[:50], noise_var=0.01)
    assert isinstance(posterior, ExactPosterior)
    base = posterior.cholesky.base.clone()
    base[7, 7] *= 1 + 1e-10
    bad = replace(posterior, cholesky=replace(posterior.cholesky, base=base))
    monkeypatch.setattr(growing_cholesky, "MIN_MERGE", 4)
    monkeypatch.setattr(growing_cholesky, "MERGE_FRACTION", 1000)
    for k in range(50, 56):
        bad = bad.update(x[k : k + 1], y[k : k + 1])
    assert bad.refactored == 1


def test_jitter_stays():
    """Noise below rounding: what was added to the diagonal is added to new rows too, and nothing is computed anew."""
    net = ntkgp.mlp(1, width=8, output_scale=1e8, generator=seeded()).double()
    x = torch.linspace(0.1, 1.0, 4).double().repeat(6).unsqueeze(1)
    with pytest.warns(ntkgp.NumericalWarning, match="singular to working precision"):
        posterior = ntkgp.fit(net, x, x[:, 0].sin(), noise_var=1e-8)
    assert isinstance(posterior, ExactPosterior)
    assert posterior.cholesky.jitter > 0
    more = posterior.update(x[:2] + 0.5, (x[:2, 0] + 0.5).sin())
    assert more.cholesky.jitter == posterior.cholesky.jitter
    assert bool(torch.isfinite(more.predict(x).mean).all())


def test_the_exact_posterior_says_when_memory_is_short(monkeypatch: pytest.MonkeyPatch):
    (x, y), net = grid(20), network()
    posterior = ntkgp.fit(net, x, y, noise_var=0.01)
    monkeypatch.setattr(factorise, "free_bytes", lambda device: 1000)
    with pytest.raises(ValueError, match=r"of 21 points needs .*LowRank"):
        posterior.update(x[:1], y[:1])
