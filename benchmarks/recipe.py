"""The search for the recipe for tables: variants on held-out points inside the training splits of the six sets.

python -m benchmarks.recipe --data-dir DIR [--splits 3] [--variants table, …] [--device cuda --jobs 15]

A seventh of the training points of a standard split is predicted from the others (``--held-out gap``: the middle third along
one feature); test points are not touched. The sets are six of the UCI repository and scikit-learn's diabetes, small and noisy.
One JSON a run under ``benchmarks/results/recipe``; what exists is not run again. ``--report`` prints the tables of
docs/tuning.md.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.common import RESULTS, save
from benchmarks.quality.data import SETS as SIX
from benchmarks.quality.data import Split, load
from benchmarks.quality.ours import at_initialisation, table
from benchmarks.quality.scores import Forecast, score

SETS = (*SIX, "diabetes")


def with_scales(smooth: float, local: float, split: Split, **options: Any) -> Forecast:
    """The recipe from other starting scales of the inputs."""
    with mock.patch.multiple("ntkgp.table", SMOOTH=smooth, LOCAL=local):
        return table(split, **options)


VARIANTS: dict[str, Callable[..., Forecast]] = {
    "table": table,
    "smooth network alone": at_initialisation,
    "without warm networks": partial(table, warm_networks=0),
    "warm for 60 steps": partial(table, warm_steps=[60]),
    "warm for 200 steps": partial(table, warm_steps=[200]),
    "warm for 600 steps": partial(table, warm_steps=[600]),
    "warm for 0, 60, 200 or 600 steps": partial(table, warm_steps=[0, 60, 200, 600]),
    "twelve warm networks": partial(table, warm_networks=12, warm_steps=[200]),
    "hyper-prior half as wide": partial(table, hyper_prior=0.5),
    "hyper-prior a quarter as wide": partial(table, hyper_prior=0.25),
    "local network half as fine": partial(with_scales, 0.7, 7.0, warm_steps=[200]),
    "local network twice as fine": partial(with_scales, 0.7, 28.0, warm_steps=[200]),
    "tuned on 1000 points": partial(table, points=1000, warm_steps=[200]),
    "narrow: 256 and 1024": partial(table, width=256, local_width=1024, warm_steps=[200]),
}


def held_out(split: Split, kind: str) -> Split:
    """A seventh of the training points, or the middle third along a feature, to be predicted from the rest."""
    if kind == "gap":
        return split.gap(3 * split.index % split.x.shape[1])
    return split.validation(seed=split.index, fraction=1 / 7)


def run(task: tuple[str, str, int], folder: Path, out: Path, device: str, kind: str) -> str:
    """One variant on one split, unless its JSON is there."""
    variant, name, index = task
    file = f"{name}-{kind}-{index}-{variant.replace(' ', '_').replace(':', '').replace(',', '')}"
    if (out / f"{file}.json").exists():
        return ""
    split = held_out(load(folder, name, "standard", index), kind)
    forecast = VARIANTS[variant](split.blind(), seed=index, device=device)
    scores = score(forecast, split.y_test)
    save(file, {"set": name, "split": index, "held_out": kind, "variant": variant, "device": device, "scores": scores}, out)
    return f"{file} {scores['nll']:.3f}"


def report(folder: Path, kind: str) -> str:
    """Mean validation NLL of each variant on each set, and coverage over all."""
    runs = [json.loads(path.read_text()) for path in sorted(folder.glob(f"*-{kind}-*.json"))]
    lines = [f"| variant | {' | '.join(SETS)} | coverage |", "|---" * (len(SETS) + 2) + "|"]
    for variant in VARIANTS:
        mine = [run for run in runs if run["variant"] == variant]
        cells, covers = [], []
        for name in SETS:
            found = [run["scores"] for run in mine if run["set"] == name]
            cells.append(f"{statistics.mean(s['nll'] for s in found):.2f} ({len(found)})" if found else "–")
            covers += [statistics.mean(s["coverage"] for s in found)] if found else []
        if covers:
            lines.append(f"| {variant} | {' | '.join(cells)} | {statistics.mean(covers):.3f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--held-out", choices=["random", "gap"], default="random")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "recipe")
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    if given.report:
        print(report(given.out, given.held_out))
        return
    tasks = [(variant, name, index) for index in range(given.splits) for name in given.sets for variant in given.variants]
    job = partial(run, folder=given.data_dir, out=given.out, device=given.device, kind=given.held_out)
    with ProcessPoolExecutor(given.jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        for line in filter(None, pool.map(job, tasks)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
