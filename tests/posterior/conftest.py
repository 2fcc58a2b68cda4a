"""Type checks of tests that run over all cases."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from tests.support.cases import Case
from tests.support.typechecker import switched_off

# One case for each kind of data, noise and prior, and some networks; shapes of all networks are checked in tests/tangent.
TYPICAL = (
    "paper mlp", "two outputs", "one output as a column", "more points than parameters", "noise per point",
    "noise per point, two outputs", "noise per output", "weight used directly", "prior variance per layer",
    "network as prior mean", "function as prior mean", "cnn", "padded embedding",
)  # fmt: skip


@pytest.fixture
def types_of_typical_cases(case: Case) -> Iterator[None]:
    """Types and shapes are checked where the case is one of its kind; the numbers are compared for every case."""
    with nullcontext() if case.name in TYPICAL else switched_off():
        yield
