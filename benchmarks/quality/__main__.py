"""Run methods on splits, one JSON each; what exists already is not run again.

python -m benchmarks.quality --data-dir DIR
python -m benchmarks.quality --data-dir DIR --sets yacht energy --methods deep_ensemble --kind gap --splits 0 1 2
python -m benchmarks.quality --data-dir DIR --sets kin8nm power --device cuda
python -m benchmarks.quality.report

The format of the data is in ``benchmarks/quality/data.py``. A single number for ``--splits`` is how many, several are which.
A run that fails is reported, leaves no JSON, and the others go on.
"""

import argparse
import os
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.common import RESULTS, save
from benchmarks.quality.data import KINDS, SETS, load, splits_of
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
    return {
        "set": task.name, "kind": task.kind, "split": task.split, "method": task.method, "seed": seed, "device": device,
        "points": len(split.x), "scores": score(forecast, split.y_test), "seconds": seconds, "unit_seconds": one,
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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--methods", nargs="+", default=list(methods()), choices=list(methods()), metavar="METHOD")
    parser.add_argument("--kind", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--splits", nargs="+", type=int, default=[])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="worker processes, of one thread each")
    parser.add_argument("--out", type=Path, default=RESULTS / "quality")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    todo = list(tasks(given.data_dir, given.sets, given.methods, given.kind, given.splits))
    rest = [[value] * len(todo) for value in (given.data_dir, given.out, given.device, given.seed)]
    failed = 0
    if given.jobs > 1:
        with ProcessPoolExecutor(given.jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
            failed = sum(_told(line) for line in pool.map(complete, todo, *rest))
    else:
        failed = sum(_told(line) for line in map(complete, todo, *rest))
    print(f"{len(todo)} runs, {failed} failed")
    return 1 if failed else 0


def _told(line: str) -> bool:
    """Print it; whether it tells of a failure."""
    if line:
        print(line, flush=True)
    return "failed\n" in line


if __name__ == "__main__":
    raise SystemExit(main())
