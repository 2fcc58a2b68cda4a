"""One thread: the problems are small, and results do not depend on how sums are split among threads."""

from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch

from tests.support import typechecker

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def unchecked() -> Iterator[None]:
    """Without the shape checker of these tests, as users run the library: nothing but the library itself objects."""
    with typechecker.switched_off():
        yield


@pytest.fixture(autouse=True)
def _checked_again() -> Iterator[None]:
    """A test that fails in a repetition leaves the shape checker as it found it."""
    before = jaxtyping.config.jaxtyping_disable
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test may save a posterior."""
    return tmp_path / "posterior.safetensors"


@pytest.fixture(scope="session")
def uci(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as benchmarks read them, with one set: an easy function of two of three features, the third constant."""
    where, random = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    x = np.column_stack([random.uniform(-2, 2, (120, 2)), np.full(120, 7.0)])
    y = 50 + 10 * (np.sin(x[:, 0]) + 0.5 * x[:, 1]) + 0.5 * random.standard_normal(120)
    standard, gap = np.zeros((3, 120), dtype=bool), np.zeros((3, 120), dtype=bool)
    for k in range(3):
        standard[k, random.permutation(120)[:20]] = True
        gap[k, np.argsort(x[:, k], kind="stable")[40:80]] = True
    np.savez_compressed(where / "yacht.npz", x=x, y=y, test_standard=standard, test_gap=gap)
    return where
