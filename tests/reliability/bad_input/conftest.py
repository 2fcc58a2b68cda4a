"""No case may take minutes."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """A case that takes minutes of work has failed."""

    def stop(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(900)  # by the wall, however busy the machine
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
