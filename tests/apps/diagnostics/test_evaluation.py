"""Every number of an evaluation against torch.distributions and integration, and its verdicts."""

import json
import math

import pytest
import torch
from torch import Tensor

import ntkgp
from tests.support.evaluations import SHAPES, drawn, normal
from tests.support.helpers import seeded


def crps_by_integration(law: torch.distributions.Normal, y: Tensor) -> Tensor:
    """∫ (F(t) − 1{t ≥ y})² dt, split at y where the integrand jumps, by the trapezoidal rule."""
    reach = 12 * law.stddev + (y - law.mean).abs()
    steps = torch.linspace(0, 1, 20001, dtype=torch.float64).view(-1, *[1] * y.ndim)
    below, above = y - reach * steps, y + reach * steps
    return torch.trapezoid(law.cdf(below).square() + (1 - law.cdf(above)).square(), reach * steps, dim=0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_every_number_of_an_evaluation(shape: tuple[int, ...], dtype: torch.dtype):
    """y stays float64 beside a float32 prediction: the numbers are those of what was predicted and observed, to float64."""
    p, y = drawn(shape)
    p = p.mapped(lambda t: t.to(dtype))
    law = normal(p.mapped(torch.Tensor.double))
    e = ntkgp.diagnostics.evaluate(p, y)
    assert e.nll == pytest.approx(-float(law.log_prob(y).mean()), rel=1e-12)
    assert e.rmse == pytest.approx(float((y - law.mean).square().mean().sqrt()), rel=1e-12)
    assert e.crps == pytest.approx(float(crps_by_integration(law, y).mean()), rel=1e-6)
    assert e.sharpness == pytest.approx(float(law.stddev.mean()), rel=1e-12)
    torch.testing.assert_close(e.pit, law.cdf(y).flatten(), rtol=1e-10, atol=1e-14)
    depth = (2 * law.cdf(y).flatten() - 1).abs()
    expected = torch.stack([(depth <= k / 20).double().mean() for k in range(1, 20)])
    assert torch.equal(e.calibration(), expected)
    assert e.calibration_error == pytest.approx(float((expected - torch.arange(1, 20) / 20).abs().mean()), rel=1e-6)
    for level in (0.5, 0.95):
        low, high = p.interval(level)
        assert e.coverage(level) == pytest.approx(float(((low <= y) & (y <= high)).double().mean()), abs=1e-12)
    assert torch.equal(e.calibration(torch.tensor([0.0, 1.0])), torch.tensor([0.0, 1.0], dtype=torch.float64))


def test_known_numbers():
    """Standard normal, y = 0 and 1: φ(0) = 0.39894, Φ(1) = 0.84134, CRPS 0.23369 and 0.60244."""
    half = torch.full((2,), 0.5)
    e = ntkgp.diagnostics.evaluate(ntkgp.Prediction(torch.zeros(2), half, half, half, half), torch.tensor([0.0, 1.0]))
    assert e.pit.tolist() == pytest.approx([0.5, 0.841344746], abs=1e-9)
    assert e.nll == pytest.approx(0.9189385 + 0.25, abs=1e-6)
    assert e.crps == pytest.approx((0.2336950 + 0.6024414) / 2, abs=1e-6)
    assert (e.rmse, e.sharpness) == (pytest.approx(math.sqrt(0.5)), pytest.approx(1.0))
    assert (e.coverage(0.5), e.coverage(0.7)) == (0.5, 1.0)


def test_calibrated_data_are_found_calibrated():
    p, y = drawn((20000,))
    e = ntkgp.diagnostics.evaluate(p, y)
    for level in (0.1, 0.5, 0.8, 0.95, 0.99):
        assert abs(e.coverage(level) - level) <= 4 * math.sqrt(level * (1 - level) / 20000)
    assert e.calibration_error <= 4 / math.sqrt(12 * 20000)
    assert (e.verdict, e.lean) == ("calibrated", "centred")


@pytest.mark.parametrize(("stated", "coverage", "verdict", "advice"), [
    (0.5, 0.6729, "over-confident", "intervals too narrow; try tune()"),  # 2Φ(0.98) − 1
    (2.0, 0.9999, "under-confident", "intervals too wide; try tune()"),
])  # fmt: skip
def test_wrong_stds_are_flagged(stated: float, coverage: float, verdict: str, advice: str):
    p, y = drawn((1000,), stated)
    e = ntkgp.diagnostics.evaluate(p, y)
    assert e.coverage() == pytest.approx(coverage, abs=4 * math.sqrt(coverage * (1 - coverage) / 1000))
    assert e.verdict == verdict
    assert advice in str(ntkgp.diagnostics.Report(p, y, e))


@pytest.mark.parametrize("count", [10, 100])
def test_calibrated_data_are_seldom_flagged(count: int):
    """By construction in some 3 % of the draws."""
    p, g = ntkgp.Prediction(*torch.full((5, count), 0.5)), seeded()
    flagged = [ntkgp.diagnostics.evaluate(p, 0.5 + torch.randn(count, generator=g)).verdict != "calibrated" for _ in range(300)]
    assert 0 < sum(flagged) <= 20


def test_outliers_and_shifted_means_are_flagged():
    p, y = drawn((1000,), stated=2.0)
    tails = torch.where(torch.arange(1000) % 10 == 0, y + 100, y)
    assert ntkgp.diagnostics.evaluate(p, tails).verdict == "heavy-tailed"
    for shift, words in ((0.5, "too low"), (-0.5, "too high")):
        p, y = drawn((1000,), shift=shift)
        e = ntkgp.diagnostics.evaluate(p, y)
        assert e.lean == words
        assert f"means {words}" in str(ntkgp.diagnostics.Report(p, y, e))


def test_a_few_observations_condemn_only_what_is_far_off():
    p, y = drawn((10,), stated=0.8)
    assert ntkgp.diagnostics.evaluate(p, y).verdict == "calibrated"
    p, y = drawn((10,), stated=0.1)
    assert ntkgp.diagnostics.evaluate(p, y).verdict == "over-confident"


@pytest.mark.parametrize("far", [0.0, 1e3, 1e30])
def test_one_observation_however_far_gives_no_nan(far: float):
    p, y = ntkgp.Prediction(*torch.ones(5, 1)), torch.full((1,), far)
    e = ntkgp.diagnostics.evaluate(p, y)
    numbers = [v for v in e.as_dict().values() if not isinstance(v, str)]
    assert all(math.isfinite(v) for v in numbers)
    assert bool(torch.isfinite(e.pit).all())
    assert str(ntkgp.diagnostics.Report(p, y, e))
    json.dumps(e.as_dict(), allow_nan=False)
