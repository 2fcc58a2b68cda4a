"""Locks that a fork waits for.

A child process is a copy of the moment of the fork with a single thread. What another thread was in the middle of, it would
be in the middle of for ever: a lock nobody opens, a network whose tensors are swapped for others. So a fork takes all of these
locks first, as the ``logging`` module does with its own, and both processes open them again.
"""

import os
import threading
import weakref

WAIT = 10.0  # seconds, after which a fork goes on all the same: waiting for ever would be no better
# By their ids; changed and listed by single operations, which threads may race for.
_locks: dict[int, "weakref.ref[ForkLock]"] = {}
_taken: list["ForkLock"] = []


class ForkLock:
    """A re-entrant lock; locks of a lower `order` are taken first.

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


def _before() -> None:
    alive = [lock for reference in list(_locks.values()) if (lock := reference()) is not None]
    for lock in sorted(alive, key=lambda lock: lock.order):
        if lock.lock.acquire(timeout=WAIT):
            _taken.append(lock)


def _after() -> None:
    while _taken:
        _taken.pop().lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
