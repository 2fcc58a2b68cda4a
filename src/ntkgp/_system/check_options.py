"""Checks of single options: counts, positive numbers, ranks, generators."""

import math
from numbers import Real

import torch
from torch import Tensor


def check_generator(generator: torch.Generator | None) -> None:
    """A generator or None."""
    if generator is not None and not isinstance(generator, torch.Generator):
        kind = type(generator).__name__
        raise TypeError(f"generator must be a torch.Generator or None, got {kind}; use torch.Generator().manual_seed(seed)")


def check_count(value: int, name: str, least: int) -> None:
    """A whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_positive(owner: str, **options: float | None) -> None:
    """Options that must be positive and finite where they are given."""
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, Real | None):
            raise TypeError(f"{name} of {owner} must be a number, got {value!r}")
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} of {owner} must be positive and finite, got {value!r}")


def check_rank(rank: int, rows: int, parameters: int) -> None:
    """1 ≤ rank ≤ min(N·C, P)."""
    check_count(rank, "rank", 1)
    if rank > min(rows, parameters):
        raise ValueError(f"rank must be at most min(N·C, P) = min({rows}, {parameters}), got {rank}; lower it")


def as_double(number: float | Tensor) -> float:
    try:
        return float(number)
    except OverflowError:  # a whole number with more digits than a double has room for
        return math.inf if number > 0 else -math.inf
