"""Locks that are safe to fork, and cached properties without a lock.

A forked child has only the thread that called fork. If another thread was inside a critical section, the child would inherit
a lock that nobody releases, or a network with swapped tensors. So a fork first acquires all of these locks, as the ``logging``
module does with its locks, and both processes release them afterwards.
"""

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")

FORK_TIMEOUT = 10.0  # seconds to wait for each lock; then fork without it rather than hang
# All locks by id. Every access is one atomic operation, so threads can share the dictionary.
_locks: dict[int, "weakref.ref[ForkLock]"] = {}
_of_this_thread = threading.local()  # the locks that the thread which forks has acquired for that


class ForkLock:
    """A re-entrant lock; a fork acquires locks of lower `order` first.

    Example:
        >>> lock = ForkLock(order=1)
        >>> with lock, lock:
        ...     pass
    """

    def __init__(self, order: int):
        self.order, self.lock, key = order, threading.RLock(), id(self)
        _locks[key] = weakref.ref(self, lambda _: _locks.pop(key, None))

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self.lock.release()


class cached_property(Generic[T]):
    """A property that is computed once. Two threads may both compute it; all get the same object.

    Up to Python 3.11, ``functools.cached_property`` holds a lock meanwhile, one for all objects of a class: threads with
    different objects wait for each other, and a child that was forked at that moment waits forever.

    Example:
        >>> class Circle:
        ...     @cached_property
        ...     def area(self) -> float:
        ...         print("computing")
        ...         return 3.14
        >>> circle = Circle()
        >>> circle.area + circle.area
        computing
        6.28
    """

    def __init__(self, compute: Callable[[Any], T]):
        self.compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> "cached_property[T]": ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> "T | cached_property[T]":
        if instance is None:
            return self
        return vars(instance).setdefault(self.name, self.compute(instance))  # from then on found before this method


def _acquire_all() -> None:
    """Acquire every lock before a fork."""
    acquired = _of_this_thread.acquired = []
    alive = [lock for reference in list(_locks.values()) if (lock := reference()) is not None]
    for lock in sorted(alive, key=lambda lock: lock.order):
        if lock.lock.acquire(timeout=FORK_TIMEOUT):
            acquired.append(lock)


def _release_all() -> None:
    """Release every lock after a fork, in the parent and in the child."""
    for lock in reversed(_of_this_thread.__dict__.pop("acquired", [])):
        lock.lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_acquire_all, after_in_parent=_release_all, after_in_child=_release_all)
