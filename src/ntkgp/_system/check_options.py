"""Checks of single options: counts, positive numbers, ranks, generators."""

import math
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor


def check_generator(generator: torch.Generator | None) -> None:
    """Check that this is a generator or None."""
    if generator is not None and not isinstance(generator, torch.Generator):
        kind = type(generator).__name__
        raise TypeError(f"generator must be a torch.Generator or None, got {kind}; use torch.Generator().manual_seed(seed)")


def check_count(value: Any, name: str, least: int) -> None:
    """Check that this is a whole number of any kind, NumPy's too, of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_positive(owner: str, **options: float | None) -> None:
    """Check that each option is None or positive and finite; `owner` is the class named in the error."""
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, Real | None):
            raise TypeError(f"{name} of {owner} must be a number, got {value!r}")
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} of {owner} must be positive and finite, got {value!r}")


def check_rank(rank: int, rows: int, parameters: int) -> None:
    """Check 1 ≤ rank ≤ min(N·C, P)."""
    check_count(rank, "rank", 1)
    if rank > min(rows, parameters):
        raise ValueError(f"rank must be at most min(N·C, P) = min({rows}, {parameters}), got {rank}; lower it")


def as_double(number: float | Tensor) -> float:
    """Convert a number to float64; one that is too large becomes infinity."""
    try:
        return float(number)
    except OverflowError:  # a Python integer above the largest float64
        return math.inf if number > 0 else -math.inf
