"""Seconds that a method takes, and the part of them that answers queries.

Work that several methods share (the same trained network) is done once in a process and counted for each of them.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from benchmarks.measure import clock_of

Value = TypeVar("Value")
_cache: dict[Hashable, tuple[object, float]] = {}
_reused = [0.0]
_queries = [0.0]


def now(device: str) -> float:
    """Seconds so far: CPU time with one thread, else wall-clock time; reused work counts as done."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
    return clock_of(torch.get_num_threads(), device)() + _reused[0]


def shared(key: Hashable, make: Callable[[], Value], device: str) -> Value:
    """The value of ``make()``, computed once per key in this process."""
    if key in _cache:
        value, seconds = _cache[key]
        _reused[0] += seconds
        return value  # pyright: ignore[reportReturnType]
    start = now(device)
    value = make()
    _cache[key] = value, now(device) - start
    return value


@contextmanager
def querying(device: str) -> Iterator[None]:
    """Count the time of the block as time of queries; see :func:`queried`."""
    start = now(device)
    yield
    _queries[0] += now(device) - start


def queried() -> float:
    """Seconds spent on queries so far."""
    return _queries[0]
