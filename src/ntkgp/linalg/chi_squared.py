"""The exact interval of a variance from independent zero-mean Gaussian draws: T·v̂/v has the χ² distribution with T degrees."""

import math
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.check_options import check_count


def variance_interval(draws: int, confidence: float, off: float = 0.0) -> tuple[float, float]:
    """Factors (a, b) such that a·v̂ ≤ v ≤ b·v̂ with probability `confidence`, where v̂ is the mean square of the draws.

    The probability is exact for any number of draws. Each side is missed with the same probability.

    Args:
        draws: T.
        confidence: the probability, between 0 and 1.
        off: a bound on the error of each draw, in units of √v: draws that are computed by an iteration are not exact.

    Example:
        >>> [round(factor, 2) for factor in variance_interval(64, 0.99)]
        [0.66, 1.66]
        >>> variance_interval(0, 0.99)  # no draws say nothing
        (0.0, inf)
    """
    check_confidence(confidence)
    if draws == 0:
        return 0.0, math.inf
    check_count(draws, "draws", 1)
    low, high = (math.sqrt(quantile(draws, p) / draws) for p in ((1 - confidence) / 2, (1 + confidence) / 2))
    return 1 / (high + off) ** 2, 1 / (low - off) ** 2 if low > off else math.inf


def scaled(interval: tuple[float, float], mean_square: Float[Tensor, "M"]) -> tuple[Float[Tensor, "M"], Float[Tensor, "M"]]:
    """The interval of each variance; its upper end is infinite where the draws say nothing, also about a variance of zero.

    Example:
        >>> scaled((0.5, math.inf), torch.zeros(1))
        (tensor([0.]), tensor([inf]))
    """
    low, high = interval
    return low * mean_square, high * mean_square if math.isfinite(high) else torch.full_like(mean_square, math.inf)


def check_confidence(confidence: float) -> None:
    """Raise unless 0 < confidence < 1."""
    if isinstance(confidence, bool) or not isinstance(confidence, float | int) or not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence!r}; 99.9 % is 0.999")


@cache
def quantile(degrees: int, p: float) -> float:
    """The p-quantile of the χ² distribution, by bisection of its distribution function; torch has no inverse of it.

    Example:
        >>> round(quantile(2, 0.5), 4)  # 2 log 2
        1.3863
    """
    half = torch.tensor(degrees / 2, dtype=torch.float64)

    def below(x: float) -> float:
        return float(torch.special.gammainc(half, torch.tensor(x / 2, dtype=torch.float64)))

    low, high = 0.0, float(degrees)
    while below(high) < p:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if below(middle) < p else (low, middle)
    return high
