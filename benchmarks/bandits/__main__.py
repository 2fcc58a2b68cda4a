"""Contextual bandits: the wheel and one generated problem, our UCB and Thompson sampling beside four baselines.

python -m benchmarks.bandits --jobs 2                 all of it; stops and goes on where it was
python -m benchmarks.bandits --methods ucb linear     some methods; --problems wheel-0.95, --seeds 5
python -m benchmarks.bandits --report                 summary.json, the table and docs/bandits.png of what is there
"""

import argparse
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context

import torch

from benchmarks.bandits.report import report
from benchmarks.bandits.runs import FOLDER, METHODS, PROBLEMS, complete, file_of


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--problems", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--jobs", type=int, default=1, help="worker processes, of one thread each")
    parser.add_argument("--report", action="store_true")
    chosen = parser.parse_args()
    if chosen.report:
        report()
        return
    every = product(chosen.methods, chosen.problems, chosen.seeds)
    todo = [one for one in every if not (FOLDER / f"{file_of(*one)}.json").exists()]
    with ProcessPoolExecutor(chosen.jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        for done in as_completed([pool.submit(complete, *one) for one in todo]):
            print(done.result(), flush=True)


if __name__ == "__main__":
    main()
