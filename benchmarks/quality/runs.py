"""One run: a method on a split, its scores and cost, and the JSON they are kept in."""

import os
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import save
from benchmarks.quality.data import load, splits_of
from benchmarks.quality.registry import methods
from benchmarks.quality.scores import score
from benchmarks.quality.timing import now, unit


class Task(NamedTuple):
    """One run: a method on a split."""

    method: str
    name: str
    kind: str
    split: int

    @property
    def file(self) -> str:
        """The JSON's name without its ending."""
        return f"{self.name}-{self.kind}-{self.split}-{self.method}"


def run(task: Task, folder: Path, device: str = "cpu", seed: int = 0) -> dict[str, Any]:
    """Forecast and scores of one task; the method does not see the test targets."""
    split = load(folder, task.name, task.kind, task.split)
    one = unit(len(split.x), split.x.shape[1], device)
    seed = 1000 * seed + task.split
    start = now(device)
    forecast = methods()[task.method](split.blind(), seed=seed, device=device)
    seconds = now(device) - start
    fresh = ~split.repeated
    record = {"scores": score(forecast, split.y_test)}
    if bool(split.repeated.any()) and bool(fresh.any()):  # what a copy of a training point tells is not generalisation
        record["scores_without_copies"] = score(forecast.at(fresh), split.y_test[fresh])
    return {
        "set": task.name, "kind": task.kind, "split": task.split, "method": task.method, "seed": seed, "device": device,
        "points": len(split.x), **record, "seconds": seconds, "unit_seconds": one,
        "settings": forecast.chosen, "packages": _packages(),
    }  # fmt: skip


def _packages() -> dict[str, str]:
    found = {}
    for name in ("laplace-torch", "curvlinops-for-pytorch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def tasks(
    folder: Path, sets: Sequence[str], names: Sequence[str], kinds: Sequence[str], splits: Sequence[int]
) -> Iterator[Task]:
    """Method by method, set by set."""
    for method in names:
        for name in sets:
            for kind in kinds:
                count = splits_of(folder, name, kind)
                chosen = range(count) if not splits else range(min(splits[0], count)) if len(splits) == 1 else splits
                yield from (Task(method, name, kind, index) for index in chosen if index < count)


def complete(task: Task, folder: Path, out: Path, device: str, seed: int) -> str:
    """Run a task and write its JSON, unless it is there; one line to print."""
    if (out / f"{task.file}.json").exists():
        return ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            record = run(task, folder, device, seed)
    except Exception:
        return f"{task.file} failed\n{traceback.format_exc()}"
    with tempfile.TemporaryDirectory(dir=out) as aside:  # a broken run leaves no half of a file
        os.replace(save(task.file, record, Path(aside)), out / f"{task.file}.json")
    return f"{task.file} nll {record['scores']['nll']:.3f} rmse {record['scores']['rmse']:.3f} {record['seconds']:.1f} s"
