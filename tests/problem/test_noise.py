"""Noise given once, per point, per output; and the noise of new points."""

import pytest
import torch

import ntkgp
from tests.support.cases import by_name
from tests.support.oracle import error


def test_noise_of_new_points():
    case = by_name("two outputs")
    posterior = case.fit()
    p = posterior.predict(case.query)
    assert p.noise_var is not None
    assert torch.equal(p.noise_var, torch.full_like(p.mean, 0.01))
    torch.testing.assert_close(p.total_std, (p.variance + 0.01).sqrt())
    torch.testing.assert_close(p.std.square(), p.variance)
    per_point = torch.linspace(1, 2, len(case.query)).double()
    told = posterior.predict(case.query, noise_var=per_point)
    torch.testing.assert_close(told.total_std, (p.variance + per_point.unsqueeze(1)).sqrt())
    assert torch.equal(told.variance, p.variance)


def test_noise_that_differs_from_point_to_point_is_not_guessed():
    case = by_name("noise per output")
    posterior = case.fit()
    p = posterior.predict(case.query)
    assert p.noise_var is None
    with pytest.raises(ValueError, match="pass noise_var to predict"):
        _ = p.total_std
    assert posterior.predict(case.query, noise_var=0.25).total_std.shape == p.mean.shape


def test_scalar_noise_is_the_same_as_that_noise_everywhere():
    case = by_name("two outputs")
    a = case.fit().predict(case.query)
    for noise in (torch.full((12,), 0.01, dtype=torch.float64), torch.full((12, 2), 0.01, dtype=torch.float64)):
        b = ntkgp.fit(case.module(), case.x, case.y, noise_var=noise).predict(case.query)
        assert torch.equal(a.mean, b.mean)
        assert torch.equal(a.variance, b.variance)


def test_points_of_little_noise_count_more():
    """A point with infinite patience is as good as absent; one with hardly any noise is interpolated."""
    case = by_name("paper mlp")
    noise = torch.full((12,), 0.01).double()
    noise[0], noise[1] = 1e12, 1e-8
    p = ntkgp.fit(case.module(), case.x, case.y, noise_var=noise).predict(case.x)
    without = ntkgp.fit(case.module(), case.x[1:], case.y[1:], noise_var=noise[1:]).predict(case.x)
    assert error(p.mean, without.mean) <= 1e-9
    assert abs(float(p.mean[1] - case.y[1])) <= 1e-7


def test_noise_of_each_output_is_the_same_as_written_out():
    case = by_name("two outputs")
    each = torch.tensor([[0.1, 0.4]], dtype=torch.float64)
    short = ntkgp.fit(case.module(), case.x, case.y, noise_var=each).predict(case.query)
    long = ntkgp.fit(case.module(), case.x, case.y, noise_var=each.expand(len(case.x), 2)).predict(case.query)
    assert torch.equal(short.mean, long.mean)
    assert torch.equal(short.variance, long.variance)
    assert short.noise_var is not None
    assert torch.equal(short.noise_var, each.expand(len(case.query), 2))
    assert long.noise_var is None
