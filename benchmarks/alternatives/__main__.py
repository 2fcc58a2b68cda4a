"""Run the methods on the UCI splits, one JSON a run; what exists already is not run again.

python -m benchmarks.alternatives --data-dir DIR --jobs 2
python -m benchmarks.alternatives --data-dir DIR --small --jobs 2          every method on one split of yacht, minutes
python -m benchmarks.alternatives --data-dir DIR --sets yacht --methods epinet mean_field --kind gap --splits 0 1 2
python -m benchmarks.alternatives.figure                                    the picture
python -m benchmarks.alternatives.report                                    docs/alternatives.md

The format of the data is in ``benchmarks/quality/data.py``. A single number for ``--splits`` is how many, several are which. A
run that fails is reported, leaves no JSON, and the others go on. Kind ``ood`` is the AUROC of ``benchmarks/ood.py`` on gap
splits. The seed of a run is the number of its split.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from benchmarks.alternatives.registry import METHODS
from benchmarks.alternatives.runs import KINDS, complete, tasks
from benchmarks.common import RESULTS
from benchmarks.quality.data import SETS

SMALL = {"sets": ["yacht"], "splits": [1]}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS), metavar="METHOD")
    parser.add_argument("--kind", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--splits", nargs="+", type=int, default=[])
    parser.add_argument("--jobs", type=int, default=1, help="worker processes, of one thread each")
    parser.add_argument("--small", action="store_true", help="one split of yacht, fewer steps, a folder of its own")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(arguments)
    out = given.out or RESULTS / ("alternatives_small" if given.small else "alternatives")
    sets, splits = (SMALL["sets"], SMALL["splits"]) if given.small else (given.sets, given.splits)
    todo = list(tasks(given.data_dir, sets, given.methods, given.kind, splits))
    out.mkdir(parents=True, exist_ok=True)
    rest = [[value] * len(todo) for value in (given.data_dir, out, given.small)]
    with ProcessPoolExecutor(given.jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        lines = [line for found in pool.map(complete, todo, *rest) for line in found if not print(line, flush=True)]
    failed = sum("failed\n" in line for line in lines)
    print(f"{len(lines)} runs done, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
