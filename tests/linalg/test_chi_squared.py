"""The interval of a variance from draws, against SciPy's quantiles and by simulation."""

import pytest
import torch
from scipy import stats

from ntkgp.linalg.chi_squared import quantile, variance_interval


@pytest.mark.parametrize("degrees", [1, 2, 7, 64, 2000, 50_000])
@pytest.mark.parametrize("p", [0.0005, 0.3, 0.9995])
def test_quantiles(degrees: int, p: float):
    assert quantile(degrees, p) == pytest.approx(stats.chi2.ppf(p, degrees), rel=1e-8)


@pytest.mark.parametrize("draws", [1, 16, 64])
@pytest.mark.parametrize("off", [0.0, 0.05])
def test_the_interval_holds_as_often_as_it_says(draws: int, off: float):
    """Also if every draw is wrong by as much as allowed, all to the same side."""
    g, runs, confidence = torch.Generator().manual_seed(0), 20_000, 0.9
    exact = torch.randn(runs, draws, generator=g, dtype=torch.float64)
    low, high = variance_interval(draws, confidence, off)
    for sign in (1, -1) if off else (1,):
        estimate = (exact + sign * off * exact.sign()).square().mean(dim=1)
        held = float(((low * estimate <= 1) & (high * estimate >= 1)).double().mean())
        assert held >= confidence - 4 * (confidence * (1 - confidence) / runs) ** 0.5
        if not off:
            assert held <= confidence + 4 * (confidence * (1 - confidence) / runs) ** 0.5


def test_no_draws_and_too_large_errors_say_nothing():
    assert variance_interval(0, 0.99) == (0.0, float("inf"))
    assert variance_interval(2, 0.99, off=1.0)[1] == float("inf")


@pytest.mark.parametrize("confidence", [0.0, 1.0, 99, True, float("nan")])
def test_a_confidence_is_a_probability(confidence: float):
    with pytest.raises(ValueError, match="confidence must lie between 0 and 1"):
        variance_interval(3, confidence)
