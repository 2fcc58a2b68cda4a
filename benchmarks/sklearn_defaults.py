"""``NTKGPRegressor()`` beside scikit-learn's ``GaussianProcessRegressor``, each as it comes, in one run.

python -m benchmarks.sklearn_defaults --data-dir DIR
python -m benchmarks.sklearn_defaults --data-dir DIR --sets yacht --split 3

The sets are scikit-learn's diabetes (a fifth held out) and UCI sets, a file ``<name>.npz`` each with the splits of the
literature (``benchmarks/quality/data.py`` describes them). The rival gets standardised inputs, ``normalize_y=True``, three
restarts, and the kernel that its user guide begins with: constant · RBF + white noise, with one length scale or one a feature.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from sklearn.datasets import load_diabetes
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import ntkgp
from benchmarks.common import RESULTS, save
from ntkgp.sklearn import NTKGPRegressor

Data = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def load(name: str, folder: Path | None, split: int) -> Data:
    """Training and test inputs, training and test targets."""
    if name == "diabetes":
        x, y = load_diabetes(return_X_y=True)
        return tuple(train_test_split(x, y, test_size=0.2, random_state=split))  # pyright: ignore[reportReturnType]
    if folder is None:
        raise SystemExit(f"{name} is read from a file; pass --data-dir")
    with np.load(folder / f"{name}.npz") as stored:
        x, y, test = stored["x"], stored["y"], stored["test_standard"][split]
    return x[~test], x[test], y[~test], y[test]


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


def run(data: Data, make: Callable[[int], Any]) -> dict[str, Any]:
    """Scores of one method on one set, by the same code for all."""
    x, x_test, y, y_test = data
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of optimisers at the edge of their ranges
        model = make(x.shape[1]).fit(x, y)
        mean, std = model.predict(x_test, return_std=True)
    seconds = time.perf_counter() - started
    mean, variance = torch.tensor(mean), torch.tensor(std).square()
    nothing = torch.zeros_like(mean)
    p = ntkgp.Prediction(mean, variance, variance, variance, nothing)
    return {**ntkgp.evaluate(p, torch.tensor(y_test, dtype=torch.float64)).as_dict(), "seconds": round(seconds, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--sets", nargs="+", default=["diabetes", "yacht", "energy"])
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    record: dict[str, Any] = {"split": given.split, "scikit-learn": sklearn.__version__, "sets": {}}
    for name in given.sets:
        data = load(name, given.data_dir, given.split)
        scores = {method: run(data, make) for method, make in METHODS.items()}
        record["sets"][name] = {"train": len(data[0]), "test": len(data[1]), "features": data[0].shape[1], "scores": scores}
        for method, found in scores.items():
            print(f"{name:>10} {method:>16}: nll {found['nll']:8.4f}, rmse {found['rmse']:8.4g}, "
                  f"95 % cover {found['coverage_95']:.1%}, {found['seconds']:.1f} s", flush=True)  # fmt: skip
        save("sklearn_defaults", record, given.out)


if __name__ == "__main__":
    main()
