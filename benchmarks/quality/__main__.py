"""Run methods on splits, one JSON each; what exists already is not run again.

python -m benchmarks.quality --data-dir DIR
python -m benchmarks.quality --data-dir DIR --sets yacht energy --methods deep_ensemble --kind gap --splits 0 1 2
python -m benchmarks.quality --data-dir DIR --sets kin8nm power --device cuda
python -m benchmarks.quality.report

The format of the data is in ``benchmarks/quality/data.py``. A single number for ``--splits`` is how many, several are which.
A run that fails is reported, leaves no JSON, and the others go on.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from benchmarks.common import RESULTS
from benchmarks.quality.data import KINDS, SETS
from benchmarks.quality.registry import methods
from benchmarks.quality.runs import complete, tasks


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
