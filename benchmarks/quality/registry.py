"""All methods by name, with their labels: this library's, where they are there, and the established ones.

``benchmarks/quality/ours.py`` has a dict ``METHODS`` of this library's, and may have one of ``LABELS``.
"""

import importlib
import importlib.util
from collections.abc import Callable

from benchmarks.quality import baselines
from benchmarks.quality.scores import Forecast

Method = Callable[..., Forecast]


def methods() -> dict[str, Method]:
    """Name to ``method(split, *, seed, device) -> Forecast``."""
    return {**_ours("METHODS"), **baselines.METHODS}


def labels() -> dict[str, str]:
    """Name to what a table calls it."""
    return {**{name: name for name in methods()}, **_ours("LABELS"), **baselines.LABELS}


def own() -> set[str]:
    """The names of this library's methods."""
    return set(_ours("METHODS"))


def _ours(attribute: str) -> dict:
    if importlib.util.find_spec("benchmarks.quality.ours") is None:
        return {}
    return getattr(importlib.import_module("benchmarks.quality.ours"), attribute, {})
