"""``NTKGPRegressor()`` beside scikit-learn's ``GaussianProcessRegressor``, each as it comes.

python -m benchmarks.studies.sklearn_defaults --data-dir DIR
python -m benchmarks.studies.sklearn_defaults --data-dir DIR --sets yacht --split 3
python -m benchmarks.studies.sklearn_defaults --report                        the scores

The sets are scikit-learn's diabetes (a fifth held out) and UCI sets with the splits of the literature (``benchmarks/uci.py``).
The rival gets standardised inputs, ``normalize_y=True``, three restarts, and the kernel that its user guide begins with:
constant · RBF + white noise, with one length scale or one per feature.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import ntkgp
from benchmarks.store import Record
from benchmarks.studies.runner import Given, Job, Study, main
from benchmarks.uci import raw
from ntkgp.sklearn import NTKGPRegressor


def ours(_: int) -> Any:
    return NTKGPRegressor(random_state=0)


def rbf(_: int) -> Any:
    return _gp(1.0)


def rbf_ard(features: int) -> Any:
    return _gp(np.ones(features))


def _gp(scale: Any) -> Any:
    kernel = ConstantKernel() * RBF(scale) + WhiteKernel()
    return make_pipeline(
        StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=3, random_state=0)
    )


METHODS: dict[str, Callable[[int], Any]] = {"ntkgp": ours, "sklearn_rbf": rbf, "sklearn_rbf_ard": rbf_ard}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", type=Path, default=Path(), help="folder of the sets, see benchmarks/uci.py")
    parser.add_argument("--sets", nargs="+", default=["diabetes", "yacht", "energy"])
    parser.add_argument("--split", type=int, default=0)


def jobs(given: Given) -> Iterator[Job]:
    """Set by set, every method."""
    for name in given.sets:
        yield from ({"set": name, "split": given.split, "method": method} for method in METHODS)


def run(job: Job, given: Given) -> Record:
    """Scores of one method on one set, by the same code for all."""
    x, y, x_test, y_test = raw(given.data_dir, job["set"], "standard", job["split"])
    started = time.perf_counter()
    model = METHODS[job["method"]](x.shape[1]).fit(x, y)
    mean, std = model.predict(x_test, return_std=True)
    seconds = time.perf_counter() - started
    mean, variance = torch.tensor(mean), torch.tensor(std).square()
    p = ntkgp.Prediction(mean, variance, variance, variance, torch.zeros_like(mean))
    found = ntkgp.diagnostics.evaluate(p, torch.tensor(y_test, dtype=torch.float64)).as_dict()
    return {"train": len(x), "test": len(x_test), "features": x.shape[1], "scores": {**found, "seconds": round(seconds, 2)}}


def line(record: Record) -> str:
    found = record["scores"]
    return (f"nll {found['nll']:8.4f}, rmse {found['rmse']:8.4g}, 95 % cover {found['coverage_95']:.1%}, "
            f"{found['seconds']:.1f} s")  # fmt: skip


def report(records: list[Record], given: Given) -> None:
    """Print the scores."""
    for record in records:
        print(f"{record['set']:>10} {record['method']:>16}: {line(record)}")


KEYS = ("set", "split", "method")
STUDY = Study("sklearn_defaults", __doc__ or "", KEYS, options, jobs, run, line, report, packages=("scikit-learn",))

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
