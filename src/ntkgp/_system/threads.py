"""Threads: small pieces of work run on one thread each.

Threads that share one small operation wait for each other many thousand times a second, and waiting threads spin. Beside a
busy core such a computation can take seventy times as long as on a single thread.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch

_given = threading.local()  # `threads`: those of the caller, inside of `one_thread`
FEW_ROWS = 1500  # matrices of fewer rows gain little from several threads, and lose much beside a busy core
T = TypeVar("T")
R = TypeVar("R")


@contextlib.contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Let torch use one thread, if wanted; restore the caller's number at the end.

    Example:
        >>> import torch
        >>> before = torch.get_num_threads()
        >>> with one_thread():
        ...     torch.get_num_threads()
        1
        >>> torch.get_num_threads() == before
        True
    """
    before = torch.get_num_threads()
    if not wanted or before == 1:
        yield
        return
    torch.set_num_threads(1)
    _given.threads = before
    try:
        yield
    finally:
        del _given.threads
        torch.set_num_threads(before)


def for_each(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """The result of each item, in their order. Each item has one thread; as many run at a time as the caller has threads.

    Example:
        >>> for_each(lambda k: k * k, [1, 2, 3])
        [1, 4, 9]
    """
    workers = min(getattr(_given, "threads", torch.get_num_threads()), len(items))
    with one_thread():
        if workers < 2:
            return [function(item) for item in items]
        gradients = torch.is_grad_enabled()  # a setting of each thread
        with ThreadPoolExecutor(workers, initializer=partial(_start, gradients)) as pool:
            return list(pool.map(function, items))


def _start(gradients: bool) -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(gradients)
