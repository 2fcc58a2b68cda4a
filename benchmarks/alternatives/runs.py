"""One run: a method on a split, its scores and its costs, and the JSON they are kept in."""

import os
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.alternatives.linearised import Ordinary
from benchmarks.alternatives.protocol import BATCH, MOST, STEPS, trained
from benchmarks.alternatives.registry import METHODS
from benchmarks.common import save
from benchmarks.ood import auroc, with_known
from benchmarks.quality.data import Split, load, splits_of
from benchmarks.quality.scores import score
from benchmarks.quality.timing import now, queried

KINDS = ("standard", "gap", "ood")
TIMED = 600  # steps of the unit that are timed; the others take as long


class Task(NamedTuple):
    """Some methods of one family on a split."""

    methods: tuple[str, ...]
    name: str
    kind: str
    split: int

    def file(self, method: str) -> str:
        """The JSON's name without its ending."""
        return f"{self.name}-{self.kind}-{self.split}-{method}"


@cache
def unit(points: int, features: int) -> float:
    """Seconds to train one network of the common budget on so many points."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(points, features, generator=generator), torch.randn(points, generator=generator)
    split = Split.of(x, y, x[:1], y[:1])
    batches = -(-points // BATCH)
    epochs = max(1, TIMED // batches)
    trained(Ordinary, split, [0.0], 1)  # what is loaded at first use
    start = now("cpu")
    trained(Ordinary, split, [0.0], epochs)
    return (now("cpu") - start) * min(MOST, STEPS // batches) / epochs


def run(method: str, task: Task, folder: Path, small: bool) -> dict[str, Any]:
    """Forecast, scores and costs; the method does not see the test targets."""
    ood = task.kind == "ood"
    split, gap = load(folder, task.name, "gap" if ood else task.kind, task.split), 0
    if ood:
        split, gap = with_known(split, task.split)
    one = unit(len(split.x), split.x.shape[1])
    options = METHODS[method].small_form if small else {}
    start, before = now("cpu"), queried()
    forecast = METHODS[method].run(split.blind(), seed=task.split, device="cpu", **options)
    seconds, query = now("cpu") - start, queried() - before
    record: dict[str, Any] = {}
    if ood:
        assert forecast.epistemic is not None, f"{method} has no epistemic std"
        kinds = {"epistemic": forecast.epistemic, "total": forecast.std}
        record = {"auroc": {name: auroc(std[gap:], std[:gap]) for name, std in kinds.items()}}
    else:
        record = {"scores": score(forecast, split.y_test)}
        if bool(split.repeated.any()) and bool((~split.repeated).any()):
            record["scores_without_copies"] = score(forecast.at(~split.repeated), split.y_test[~split.repeated])
    return {
        "set": task.name, "kind": task.kind, "split": task.split, "method": method, "seed": task.split, "device": "cpu",
        "points": len(split.x), "queries": len(split.x_test), **record, "seconds": seconds, "query_seconds": query,
        "unit_seconds": one, "settings": forecast.chosen,
    }  # fmt: skip


def tasks(
    folder: Path, sets: Sequence[str], names: Sequence[str], kinds: Sequence[str], splits: Sequence[int]
) -> Iterator[Task]:
    """Family by family, set by set."""
    for family in dict.fromkeys(METHODS[name].family for name in names):
        members = tuple(name for name in names if METHODS[name].family == family)
        for name in sets:
            for kind in kinds:
                count = splits_of(folder, name, "standard" if kind == "standard" else "gap")
                chosen = range(count) if not splits else range(min(splits[0], count)) if len(splits) == 1 else splits
                yield from (Task(members, name, kind, index) for index in chosen if index < count)


def complete(task: Task, folder: Path, out: Path, small: bool) -> list[str]:
    """Run what has no JSON yet and write it; a line for each to print."""
    lines = []
    for method in task.methods:
        file = task.file(method)
        if (out / f"{file}.json").exists():
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                record = run(method, task, folder, small)
        except Exception:
            lines.append(f"{file} failed\n{traceback.format_exc()}")
            continue
        with tempfile.TemporaryDirectory(dir=out) as aside:  # a broken run leaves no half of a file
            os.replace(save(file, record, Path(aside)), out / f"{file}.json")
        found = record.get("auroc", {}).get("epistemic", record.get("scores", {}).get("nll"))
        lines.append(f"{file} {'auroc' if task.kind == 'ood' else 'nll'} {found:.3f} {record['seconds']:.1f} s")
    return lines
