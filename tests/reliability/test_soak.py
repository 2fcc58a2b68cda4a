"""The short form of soak.py, which `make soak` runs for an hour."""

import pytest

from tests.reliability import soak

pytestmark = pytest.mark.usefixtures("unchecked")


def test_some_seconds():
    """Invariants; memory needs more time to tell. The same steps on every machine, however busy."""
    found = soak.soak(minutes=60, steps=300, quiet=True)
    assert found["violations"] == 0
    assert found["steps"] == 300


def test_drift_sees_a_leak():
    flat, leak = [(k / 10, 1000) for k in range(100)], [(k / 10, 1000 + k) for k in range(100)]
    assert soak.drift(flat) == 0
    assert soak.drift(leak) > 1
