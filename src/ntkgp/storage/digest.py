"""Numbers that identify values and their order. Those of parts add up, so they are the same however ranks divide the points."""

import torch
from torch import Tensor

FACTOR = 0x5851F42D4C957F2D  # odd, with no pattern in its bits


def digest(values: Tensor, start: int = 0) -> int:
    """Digest values exactly; `start` is the position of the first among all values.

    A sum of integers wraps around and, unlike a floating-point sum, does not depend on the number of threads.
    """
    bits = values.detach().double().flatten().view(torch.int64)
    return int(_mixed(bits ^ _mixed(_positions(bits, start))).sum())


def weighted_sum(values: Tensor, start: int = 0) -> Tensor:
    """Sum values in float64, each times a weight between 1 and 2 that depends on its position."""
    weights = 1 + (_mixed(_positions(values, start)) & 0xFFFFFFFF).double() / 2**32
    return (values.detach().double() * weights).sum()


def _positions(values: Tensor, start: int) -> Tensor:
    return torch.arange(start + 1, start + 1 + len(values), device=values.device)


def _mixed(numbers: Tensor) -> Tensor:
    """Map 64-bit integers to others, one to one: each bit of the input changes about half of the upper bits."""
    for _ in range(2):
        numbers = (numbers ^ (numbers >> 32 & 0xFFFFFFFF)) * FACTOR
    return numbers ^ (numbers >> 32 & 0xFFFFFFFF)
