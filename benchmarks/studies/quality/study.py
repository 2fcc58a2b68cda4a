"""Predictive quality on six UCI sets: this library and established methods on the same splits, scored alike.

python -m benchmarks.studies.quality --data-dir DIR
python -m benchmarks.studies.quality --data-dir DIR --sets yacht energy --methods deep_ensemble --kind gap --splits 0 1 2
python -m benchmarks.studies.quality --data-dir DIR --sets kin8nm power --device cuda
python -m benchmarks.studies.quality --report                docs/quality.md and its plots

``benchmarks/uci.py`` describes the folder of the data, ``benchmarks/studies/runner.py`` how runs resume.
"""

import argparse
from collections.abc import Iterator

from benchmarks.methods.training.networks import SMOOTH
from benchmarks.store import Record
from benchmarks.studies import splits
from benchmarks.studies.quality.methods import METHODS
from benchmarks.studies.quality.report import report
from benchmarks.studies.runner import Given, Job, Study
from benchmarks.uci import KINDS, load


def options(parser: argparse.ArgumentParser) -> None:
    splits.options(parser, METHODS)
    parser.add_argument("--kind", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)


def jobs(given: Given) -> Iterator[Job]:
    """Method by method, set by set."""
    for method in given.methods:
        for name in given.sets:
            for kind in given.kind:
                for index in splits.chosen(given, name, kind):
                    yield {"set": name, "kind": kind, "split": index, "method": method}


def unit(points: int, features: int, device: str) -> float:
    """Seconds to train one network: two layers of 50 SiLU units, 200 epochs of Adam, batches of 100."""
    return splits.training_seconds(SMOOTH, points, features, 200, 1e-3, device)


def run(job: Job, given: Given) -> Record:
    """Scores and cost of a method on a split."""
    split = load(given.data_dir, job["set"], job["kind"], job["split"])
    one, seed = unit(len(split.x), split.x.shape[1], given.device), 1000 * given.seed + job["split"]
    forecast, cost = splits.timed(METHODS[job["method"]], split, seed, given.device)
    return {
        "seed": seed, "device": given.device, "points": len(split.x), **splits.scored(forecast, split),
        "seconds": cost["seconds"], "unit_seconds": one, "settings": forecast.chosen,
    }  # fmt: skip


def line(record: Record) -> str:
    scores = record["scores"]
    return f"nll {scores['nll']:.3f} rmse {scores['rmse']:.3f} {record['seconds']:.1f} s"


STUDY = Study(
    "quality", __doc__ or "", ("set", "kind", "split", "method"), options, jobs, run, line, report, file_by="set",
    packages=("laplace-torch", "curvlinops-for-pytorch"),
)  # fmt: skip
