"""What the studies on UCI sets share: their options, which splits they run, and how a forecast is scored and timed."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.methods.training.learner import Make, trained
from benchmarks.scores import Forecast, score
from benchmarks.store import Record
from benchmarks.studies.runner import Given
from benchmarks.timing import now, queried
from benchmarks.uci import SETS, Split, splits_of


def options(parser: argparse.ArgumentParser, methods: Iterable[str], sets: Sequence[str] = SETS, word: str = "methods",
            splits: Sequence[int] = ()) -> None:  # fmt: skip
    """Add the options that choose sets, methods and splits."""
    methods = list(methods)
    parser.add_argument("--data-dir", type=Path, help="folder of the sets, see benchmarks/uci.py")
    parser.add_argument("--sets", nargs="+", default=list(sets))
    parser.add_argument(f"--{word}", nargs="+", default=methods, choices=methods, metavar=word[:-1].upper())
    parser.add_argument("--splits", nargs="+", type=int, default=list(splits), help="one number: how many; several: which")


def chosen(given: Given, name: str, kind: str) -> list[int]:
    """The splits of a set to run."""
    if given.data_dir is None:
        raise SystemExit("the sets are read from a folder: pass --data-dir")
    every = range(splits_of(given.data_dir, name, kind))
    if len(given.splits) == 1:
        return list(every[: given.splits[0]])
    return [index for index in given.splits or every if index in every]


def timed(method: Callable[..., Forecast], split: Split, seed: int, device: str, **more: Any) -> tuple[Forecast, Record]:
    """A forecast made without the test targets, with the seconds it took, all and for queries."""
    start, before = now(device), queried()
    forecast = method(split.blind(), seed=seed, device=device, **more)
    return forecast, {"seconds": now(device) - start, "query_seconds": queried() - before}


def scored(forecast: Forecast, split: Split) -> Record:
    """The scores, and those of the test points that have no copy among the training points if some have one."""
    found, fresh = {"scores": score(forecast, split.y_test)}, ~split.repeated
    if bool(fresh.any()) and not bool(fresh.all()):  # what a copy of a training point tells is not generalisation
        found["scores_without_copies"] = score(forecast.at(fresh), split.y_test[fresh])
    return found


def told_apart(forecast: Forecast, gap: int) -> Record:
    """How well each std tells the first ``gap`` test points, those of the gap, from the others."""
    assert forecast.epistemic is not None, "the method has no epistemic std"
    stds = {"epistemic": forecast.epistemic, "total": forecast.std}
    return {"auroc": {name: auroc(std[gap:], std[:gap]) for name, std in stds.items()}}


def auroc(inside: Tensor, outside: Tensor) -> float:
    """The chance that a score outside exceeds one inside; ties count half."""
    order = inside.sort().values
    below = torch.searchsorted(order, outside, right=False)
    upto = torch.searchsorted(order, outside, right=True)
    return float((below + upto).double().mean() / (2 * len(inside)))


@cache
def training_seconds(make: Make | partial[Any], points: int, features: int, epochs: int, rate: float, device: str) -> float:
    """Seconds to train one network on a set of this size, the unit of costs."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(points, features, generator=generator), torch.randn(points, generator=generator)
    split = Split.of(x, y, x[:1], y[:1])
    trained(make, split, [0.0], 5, rate=rate, device=device)  # loads what is loaded at first use
    start = now(device)
    trained(make, split, [0.0], epochs, rate=rate, device=device)
    return now(device) - start
