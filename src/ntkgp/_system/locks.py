"""Locks that are safe to fork.

A forked child has only the thread that called fork. If another thread was inside a critical section, the child would inherit
a lock that nobody releases, or a network with swapped tensors. So a fork first acquires all of these locks, as the ``logging``
module does with its locks, and both processes release them afterwards.
"""

import os
import threading
import weakref

FORK_TIMEOUT = 10.0  # seconds to wait for each lock; then fork without it rather than hang
# All locks by id. Every access is one atomic operation, so threads can share the dictionary.
_locks: dict[int, "weakref.ref[ForkLock]"] = {}
_acquired: list["ForkLock"] = []


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


def _acquire_all() -> None:
    """Acquire every lock before a fork."""
    alive = [lock for reference in list(_locks.values()) if (lock := reference()) is not None]
    for lock in sorted(alive, key=lambda lock: lock.order):
        if lock.lock.acquire(timeout=FORK_TIMEOUT):
            _acquired.append(lock)


def _release_all() -> None:
    """Release every lock after a fork, in the parent and in the child."""
    while _acquired:
        _acquired.pop().lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_acquire_all, after_in_parent=_release_all, after_in_child=_release_all)
