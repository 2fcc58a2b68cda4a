"""Exact() against the oracle on every problem."""

import pytest
import torch

import ntkgp
from ntkgp.posterior.exact.posterior import ExactPosterior
from tests.support.cases import Case, by_name, every, reference
from tests.support.oracle import error

# Everything is computed in float64; float32 problems are answered in float32, so rounding the answer is all that is lost.
BAR = {torch.float64: 1e-9, torch.float32: torch.finfo(torch.float32).eps}


@every()
def test_mean_variance_and_covariance_equal_the_oracle(case: Case):
    truth, posterior = reference(case), case.fit()
    p = posterior.predict(case.query)
    assert p.mean.shape == p.variance.shape == (len(case.query), *case.y.shape[1:])
    assert p.mean.dtype == p.variance.dtype == case.dtype
    assert error(p.mean.flatten(), truth.mean) <= BAR[case.dtype]
    assert error(p.variance.flatten(), truth.variance) <= BAR[case.dtype]
    assert error(posterior.covariance(case.query), truth.covariance) <= BAR[case.dtype]


@every()
def test_every_single_variance_is_right(case: Case):
    """Also the small ones, up to the rounding of the prior variance they are a difference from."""
    truth, p = reference(case), case.fit().predict(case.query)
    allowed = BAR[case.dtype] * truth.variance + 1e-12 * truth.prior.diagonal()
    assert bool(((p.variance.flatten().double() - truth.variance).abs() <= allowed).all())
    assert torch.equal(p.lower, p.variance)
    assert torch.equal(p.upper, p.variance)


@every()
def test_log_marginal_likelihood(case: Case):
    posterior = case.fit()
    assert isinstance(posterior, ExactPosterior)
    truth = reference(case)
    rounding = max(1e-9, torch.finfo(torch.float64).eps * float(torch.linalg.cond(truth.noisy)))  # of rᵀA⁻¹r
    assert posterior.log_marginal_likelihood == pytest.approx(truth.log_marginal_likelihood, rel=rounding)


@every()
def test_covariance_is_symmetric_positive_and_agrees_with_the_variance(case: Case):
    posterior = case.fit()
    covariance, prior = posterior.covariance(case.query).double(), float(reference(case).prior.diagonal().max())
    rounding = 1e-12 * prior if case.dtype == torch.float64 else 1e-6 * prior
    assert (covariance - covariance.T).abs().max() <= rounding
    assert torch.linalg.eigvalsh(covariance).min() >= -rounding
    assert (covariance.diagonal() - posterior.predict(case.query).variance.flatten().double()).abs().max() <= rounding


def test_one_point_at_a_time_or_all_together():
    case = by_name("transformer layer")
    posterior = case.fit()
    together = posterior.predict(case.query)
    alone = [posterior.predict(point.unsqueeze(0)) for point in case.query]
    assert error(torch.cat([p.mean for p in alone]), together.mean) <= 1e-12
    assert error(torch.cat([p.variance for p in alone]), together.variance) <= 1e-12


def test_queries_in_chunks(monkeypatch: pytest.MonkeyPatch):
    import ntkgp.posterior.exact.posterior

    case = by_name("two outputs")
    posterior = case.fit()
    whole = posterior.predict(case.query)
    monkeypatch.setattr(ntkgp.posterior.exact.posterior, "rows_per_chunk", lambda *_, **__: 2)
    parts = posterior.predict(case.query)
    assert error(parts.mean, whole.mean) <= 1e-13
    assert error(parts.variance, whole.variance) <= 1e-13


def test_float32_arithmetic_on_request():
    """Rounding is amplified by the condition number of K + σ²I, here about 5e4 / 1."""
    case = by_name("float32")
    noisy = ntkgp.fit(case.module(), case.x, case.y, noise_var=1.0, method=ntkgp.Exact(dtype=torch.float32))
    exact = ntkgp.fit(case.module(), case.x, case.y, noise_var=1.0)
    assert isinstance(noisy, ExactPosterior)
    assert noisy.factor.dtype == torch.float32
    condition = float(torch.linalg.cond(noisy.factor)) ** 2
    assert condition < 1e4
    a, b = noisy.predict(case.query), exact.predict(case.query)
    assert error(a.mean, b.mean) <= condition * torch.finfo(torch.float32).eps
    assert error(a.variance, b.variance) <= condition * torch.finfo(torch.float32).eps


def test_rounding_makes_no_variance_negative():
    """At noise far below rounding the variance on the data is a difference of equal numbers."""
    case = by_name("paper mlp")
    with pytest.warns(ntkgp.NumericalWarning, match="the variance by 100%"):
        posterior = ntkgp.fit(case.module(), case.x, case.y, noise_var=1e-20)
    variance = posterior.predict(case.x).variance
    assert bool((variance >= 0).all())
    assert variance.max() <= 1e-12 * float(reference(case).prior.diagonal().max())
    assert isinstance(posterior, ExactPosterior)
    cross = posterior.problem.operators.jacobian.gram() / posterior.problem.data.noise_std
    explained = torch.linalg.solve_triangular(posterior.factor, cross.T, upper=False).square().sum(dim=0)
    assert (posterior.problem.operators.jacobian.diag() - explained).min() < 0  # there was something to clip


def test_parameters_of_some_modules_only():
    case = by_name("two outputs")
    frozen = case.module()
    for name, p in frozen.named_parameters():
        p.requires_grad_(name.startswith(("0.", "4.")))
    truth = ntkgp.fit(frozen, case.x, case.y, noise_var=0.1).predict(case.query)
    some = ntkgp.fit(case.module(), case.x, case.y, noise_var=0.1, parameters=["0", "4"]).predict(case.query)
    assert torch.equal(some.mean, truth.mean)
    assert torch.equal(some.variance, truth.variance)
    with pytest.raises(TypeError, match="list of module names"):
        ntkgp.fit(case.module(), case.x, case.y, noise_var=0.1, parameters="4")
