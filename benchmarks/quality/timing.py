"""What a method costs: its seconds, and the unit they are given in, so that figures of different machines can be compared.

Work that several methods share (the same trained network) is done once in a process and counted for each of them.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch
from torch import nn

from benchmarks.measure import clock_of
from benchmarks.quality.stacked import Stack, squared_loss, train

Value = TypeVar("Value")
_kept: dict[Hashable, tuple[object, float]] = {}
_reused = [0.0]
_queries = [0.0]


def now(device: str) -> float:
    """Seconds so far: CPU time where there is one thread, else wall-clock time; work reused counts as done."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
    return clock_of(torch.get_num_threads(), device)() + _reused[0]


def shared(key: Hashable, make: Callable[[], Value], device: str) -> Value:
    """What ``make`` returns, or returned when it was first called with this key in this process."""
    if key in _kept:
        value, seconds = _kept[key]
        _reused[0] += seconds
        return value  # pyright: ignore[reportReturnType]
    start = now(device)
    value = make()
    _kept[key] = value, now(device) - start
    return value


@contextmanager
def querying(device: str) -> Iterator[None]:
    """What is done inside answers a query; see :func:`queried`."""
    start = now(device)
    yield
    _queries[0] += now(device) - start


def queried() -> float:
    """Seconds spent on queries so far."""
    return _queries[0]


@cache
def unit(points: int, features: int, device: str) -> float:
    """Seconds to train one network on a set of this size: two layers of 50 SiLU units, 200 epochs of Adam, batches of 100."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(points, features, generator=generator).to(device), torch.randn(points, generator=generator).to(device)
    stack = Stack(1, (features, 50, 50, 1), nn.functional.silu).to(device)
    loss = squared_loss(torch.zeros(1, device=device))
    train(stack, loss, x, y, epochs=5, batch=100, rate=1e-3)  # what is loaded at first use
    start = now(device)
    train(stack, loss, x, y, epochs=200, batch=100, rate=1e-3)
    return now(device) - start
