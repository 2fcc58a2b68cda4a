"""Long forms of tests: asked for by NTKGP_LONG=1, their counts kept in benchmarks/results/robustness.jsonl."""

import contextlib
import fcntl
import json
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

LONG = bool(os.environ.get("NTKGP_LONG"))
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "robustness.jsonl"


def record(name: str, **figures: Any) -> None:
    """Keep the figures of a long form."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with open(RESULTS, "a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the files of tests run side by side
        file.seek(0)
        known = {line["name"]: line for line in map(json.loads, file) if "name" in line}
        known[name] = {"environment": 0, "name": name, **figures}
        versions = {"python": platform.python_version(), "torch": torch.__version__}
        first = {"environment": {**versions, "processor": platform.machine()}}
        file.truncate(0)
        file.writelines(json.dumps(line) + "\n" for line in (first, *(known[key] for key in sorted(known))))


@contextlib.contextmanager
def recorded(name: str, request: pytest.FixtureRequest, figures: Callable[[], dict[str, Any]]) -> Iterator[None]:
    """Around the tests of a file: keeps their figures and how many of them failed, if this is the long form."""
    before = request.session.testsfailed
    yield
    if LONG:
        record(name, **figures(), failed=request.session.testsfailed - before)
