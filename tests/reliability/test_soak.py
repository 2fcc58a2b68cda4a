"""The short form of soak.py, which `make soak` runs for an hour."""

import pytest

from tests.reliability import soak

pytestmark = pytest.mark.usefixtures("unchecked")


def test_some_seconds():
    """Invariants; memory needs more time to tell."""
    found = soak.soak(minutes=0.15, quiet=True)
    assert found["violations"] == 0
    assert isinstance(found["steps"], int)
    assert found["steps"] > 20


def test_drift_sees_a_leak():
    flat, leak = [(k / 10, 1000) for k in range(100)], [(k / 10, 1000 + k) for k in range(100)]
    assert soak.drift(flat) == 0
    assert soak.drift(leak) > 1
