"""Exact() against the oracle on every problem, in both of its forms."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import ntkgp
from ntkgp.posterior.exact.posterior import ExactPosterior
from tests.support.cases import Case, by_name, every, reference
from tests.support.exact import kernel_form
from tests.support.helpers import seeded
from tests.support.oracle import error

EPS = torch.finfo(torch.float64).eps
SIDES = ["kernel", "weights"]
each_side = pytest.mark.parametrize("side", SIDES)


def bar(case: Case, side: str) -> float:
    """Everything is computed in float64; rounding of the factorised matrix acts on small variances over the weights.

    Float32 problems are answered in float32, so rounding the answer is all that is lost.
    """
    if case.dtype == torch.float32:
        return torch.finfo(torch.float32).eps
    truth = reference(case)
    blur = EPS * float((truth.train.square().sum(dim=1) / truth.noise).sum()) if side == "weights" else 0.0
    return max(1e-9, blur)


def exact(case: Case, side: str | None = None) -> ExactPosterior:
    posterior = case.fit(ntkgp.Exact(side))
    assert isinstance(posterior, ExactPosterior)
    assert side in (None, posterior.side)
    return posterior


@every()
@each_side
def test_mean_variance_and_covariance_equal_the_oracle(case: Case, side: str):
    truth, posterior = reference(case), exact(case, side)
    p = posterior.predict(case.query)
    assert p.mean.shape == p.variance.shape == (len(case.query), *case.y.shape[1:])
    assert p.mean.dtype == p.variance.dtype == case.dtype
    assert p.confidence == 1.0
    assert error(p.mean.flatten(), truth.mean) <= bar(case, side)
    assert error(posterior.mean(case.query).flatten(), truth.mean) <= bar(case, side)
    assert error(p.variance.flatten(), truth.variance) <= bar(case, side)
    assert error(posterior.covariance(case.query), truth.covariance) <= bar(case, side)


@every()
@each_side
def test_every_single_variance_is_right(case: Case, side: str):
    """Also the small ones, up to the rounding of the prior variance they are a difference from."""
    truth, p = reference(case), exact(case, side).predict(case.query)
    allowed = bar(case, side) * truth.variance + 1e-12 * truth.prior.diagonal()
    assert bool(((p.variance.flatten().double() - truth.variance).abs() <= allowed).all())
    assert torch.equal(p.lower, p.variance)
    assert torch.equal(p.upper, p.variance)


@every()
@each_side
def test_log_marginal_likelihood(case: Case, side: str):
    truth = reference(case)
    rounding = max(bar(case, side), 1e-9, EPS * float(torch.linalg.cond(truth.noisy)))  # of rᵀA⁻¹r
    assert exact(case, side).log_marginal_likelihood == pytest.approx(truth.log_marginal_likelihood, rel=rounding)


@every()
@each_side
def test_leave_one_out(case: Case, side: str):
    """Each observation from all others: by a solve without it, not by the inverse's diagonal."""
    truth = reference(case)
    errors, deviations = (part.flatten().double() for part in exact(case, side).leave_one_out())
    rows = torch.arange(len(truth.noise))
    for i in (0, len(rows) // 2, len(rows) - 1):
        others = rows != i
        weights = torch.linalg.solve(truth.noisy[others][:, others], truth.noisy[others, i])
        variance = float(truth.noisy[i, i] - weights @ truth.noisy[others, i])
        gap = float(truth.residual[i] - weights @ truth.residual[others])
        loose = max(1e-6, 1e4 * bar(case, side)) * float((truth.noisy[i, i] / variance) ** 0.5)
        assert float(deviations[i]) == pytest.approx(variance**0.5, rel=loose)
        assert float(errors[i]) == pytest.approx(gap / variance**0.5, rel=loose, abs=10 * loose)


@every()
@each_side
def test_covariance_is_symmetric_positive_and_agrees_with_the_variance(case: Case, side: str):
    posterior = exact(case, side)
    covariance, prior = posterior.covariance(case.query).double(), float(reference(case).prior.diagonal().max())
    rounding = 1e-12 * prior if case.dtype == torch.float64 else 1e-6 * prior
    assert (covariance - covariance.T).abs().max() <= rounding
    assert torch.linalg.eigvalsh(covariance).min() >= -rounding
    assert (covariance.diagonal() - posterior.predict(case.query).variance.flatten().double()).abs().max() <= rounding


@each_side
@pytest.mark.parametrize("name", ["noise per output", "more points than parameters"])
def test_draws_have_the_posterior_s_moments(name: str, side: str):
    case, count = by_name(name), 6000
    truth = reference(case)
    values = exact(case, side).sample(count, generator=seeded(1))(case.query).reshape(count, -1)
    spread = truth.variance.sqrt()
    assert bool(((values.mean(dim=0) - truth.mean).abs() <= 5 * spread / count**0.5).all())
    off = (torch.cov(values.T) - truth.covariance).abs() / (spread.unsqueeze(0) * spread.unsqueeze(1))
    assert float(off.max()) <= 5 * (2 / count) ** 0.5


@each_side
def test_joint_groups(side: str):
    """Means and covariances of groups of points, separately per group, with gradients."""
    case = by_name("two outputs")
    posterior, x = exact(case, side), case.query[:6].clone().view(3, 2, 2).requires_grad_()
    mean, covariance = posterior.joint(x)
    for k in range(3):
        whole = posterior.covariance(case.query[2 * k : 2 * k + 2])
        torch.testing.assert_close(covariance[k], whole, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(mean.flatten(0, 1), posterior.predict(case.query[:6]).mean, rtol=1e-9, atol=1e-11)
    (mean.sum() + covariance.sum()).backward()
    assert x.grad is not None
    step = 1e-6

    def total(at: torch.Tensor) -> torch.Tensor:
        m, c = posterior.joint(at)
        return m.sum() + c.sum()

    way = torch.randn(x.shape, generator=seeded(5), dtype=torch.float64)
    numeric = (total(x.detach() + step * way) - total(x.detach() - step * way)) / (2 * step)
    torch.testing.assert_close((x.grad * way).sum(), numeric, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["more points than parameters", "noise per point, two outputs", "transformer layer"])
def test_batches_and_tensors_give_the_same_posterior(name: str):
    """Over the weights, the data enters one sum: from a loader it is read batch by batch."""
    case = by_name(name)
    noise = case.noise_var if isinstance(case.noise_var, float) else 0.01
    loader = DataLoader(TensorDataset(case.x, case.y), batch_size=3)
    one = ntkgp.fit(case.module(), case.x, case.y, noise_var=noise, method=ntkgp.Exact("weights"))
    other = ntkgp.fit(case.module(), loader, noise_var=noise, method=ntkgp.Exact("weights"))
    a, b = one.predict(case.query), other.predict(case.query)
    assert isinstance(one, ExactPosterior)
    assert isinstance(other, ExactPosterior)
    assert other.problem.data.batches is not None
    assert error(b.mean, a.mean) <= 1e-9
    assert error(b.variance, a.variance) <= 1e-9
    assert other.log_marginal_likelihood == pytest.approx(one.log_marginal_likelihood, rel=1e-11)
    for mine, theirs in zip(one.leave_one_out(), other.leave_one_out(), strict=True):
        assert error(theirs, mine) <= 1e-8


def test_the_side_must_be_known():
    with pytest.raises(ValueError, match="side must be None, 'kernel' or 'weights', got 'both'"):
        ntkgp.Exact("both")


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
    noisy = ntkgp.fit(case.module(), case.x, case.y, noise_var=1.0, method=ntkgp.Exact("kernel", dtype=torch.float32))
    exact = ntkgp.fit(case.module(), case.x, case.y, noise_var=1.0)
    factor = kernel_form(noisy).cholesky.dense()
    assert factor.dtype == torch.float32
    condition = float(torch.linalg.cond(factor)) ** 2
    assert condition < 1e4
    a, b = noisy.predict(case.query), exact.predict(case.query)
    assert error(a.mean, b.mean) <= condition * torch.finfo(torch.float32).eps
    assert error(a.variance, b.variance) <= condition * torch.finfo(torch.float32).eps


def test_rounding_makes_no_variance_negative():
    """At noise far below rounding the variance on the data is a difference of equal numbers."""
    case = by_name("paper mlp")
    with pytest.warns(ntkgp.NumericalWarning, match="the variance by 100%"):
        posterior = ntkgp.fit(case.module(), case.x, case.y, noise_var=1e-20, method=ntkgp.Exact("kernel"))
    variance = posterior.predict(case.x).variance
    assert bool((variance >= 0).all())
    assert variance.max() <= 1e-12 * float(reference(case).prior.diagonal().max())
    cross = posterior.problem.operators.jacobian.gram() / posterior.problem.data.noise_std
    explained = torch.linalg.solve_triangular(kernel_form(posterior).cholesky.dense(), cross.T, upper=False).square().sum(dim=0)
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
