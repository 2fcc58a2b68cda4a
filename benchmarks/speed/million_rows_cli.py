"""A table of a million rows from the command line: ``ntkgp fit`` and ``ntkgp predict``, each in a process of its own.

python -m benchmarks.speed.million_rows_cli
python -m benchmarks.speed.million_rows_cli --rows 100000
python -m benchmarks.speed.million_rows_cli --rows 20000 --fit-options "--width 8 --steps 10" --out small

Ten columns of numbers, a target that is a known nonlinear function of them with noise added, and as many rows again to be
predicted. Recorded: wall and CPU time and peak memory of each process, what ``fit`` says of itself, and the predictions against
new observations and against the function. CPU time is what other programs on the machine do not disturb; beside busy ones set
GOMP_SPINCOUNT=0, or waiting threads count too.
"""

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

import ntkgp
from benchmarks.store import RESULTS, save
from ntkgp.apps.tables.folder import load
from ntkgp.posterior.lowrank.posterior import LowRankPosterior

NOISE = 0.2
COLUMNS = [f"x{k}" for k in range(10)]


def function(x: np.ndarray) -> np.ndarray:
    """Smooth waves, products, a kink and a bump; the last column does not matter."""
    waves = np.sin(3 * x[:, 0]) * x[:, 1] + 0.5 * np.sin(4 * x[:, 3] + 2 * x[:, 4])
    return waves + np.abs(x[:, 2]) + x[:, 5] * x[:, 6] + np.exp(-4 * x[:, 7] ** 2) + 0.3 * x[:, 8]


def generate(rows: int, seed: int) -> tuple[pl.DataFrame, np.ndarray]:
    """The columns with the target y, and the function's values."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (rows, len(COLUMNS)))
    f = function(x)
    return pl.DataFrame({**dict(zip(COLUMNS, x.T, strict=True)), "y": f + NOISE * rng.normal(size=rows)}), f


def measured(arguments: list[str], log: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run ``ntkgp …`` with its progress bars in a file: what it cost, and the JSON it printed."""
    started = time.perf_counter()
    with log.open("a") as bars:
        child = subprocess.Popen([sys.executable, "-m", "ntkgp", *arguments, "--json"], stdout=subprocess.PIPE, stderr=bars)
        assert child.stdout is not None
        with child.stdout as pipe:
            said = pipe.read()
        _, status, usage = os.wait4(child.pid, 0)  # of this child alone, unlike getrusage(RUSAGE_CHILDREN)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"ntkgp {arguments[0]} ended with {child.returncode}; see {log}:\n{log.read_text()[-2000:]}")
    unit = 1 if sys.platform == "darwin" else 1024
    cost = {
        "wall_seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_gib": round(usage.ru_maxrss * unit / 2**30, 3),
    }
    return cost, json.loads(said)


def scores(found: pl.DataFrame, y: np.ndarray, f: np.ndarray) -> dict[str, float]:
    """Predictions against new observations, and against the function behind them."""
    mean, epistemic, total, lower, upper = (
        found[name].to_numpy() for name in ("mean", "epistemic_std", "total_std", "lower", "upper")
    )
    nll = 0.5 * np.square((y - mean) / total) + np.log(total) + 0.5 * math.log(2 * math.pi)
    return {
        "nll": float(nll.mean()),
        "nll_of_the_truth": 0.5 * math.log(2 * math.pi * math.e * NOISE**2),
        "rmse": float(np.sqrt(np.square(y - mean).mean())),
        "rmse_to_function": float(np.sqrt(np.square(f - mean).mean())),
        "mean_epistemic_std": float(epistemic.mean()),
        "coverage_95": float(((lower <= y) & (y <= upper)).mean()),
        "function_coverage_95": float((np.abs(f - mean) <= 1.959964 * epistemic).mean()),
        "std_of_target": float(y.std()),
    }


def against_exact(folder: Path, rows: int, queries: int = 2000) -> dict[str, Any]:
    """The method of a fitted model beside ``Exact`` in float64, both on its first rows, with its network and priors."""
    model = load(folder).model
    problem = model.posterior.problem
    assert isinstance(model.posterior, LowRankPosterior)
    x, y, new = problem.data.x[:rows], problem.data.residual[:rows], problem.data.x[rows : rows + queries]
    priors = {name: scale**2 for name, scale in problem.operators.tangent.scales.items()}
    options = {
        "noise_var": float(problem.data.noise_std[0]) ** 2,
        "prior_var": priors,
        "generator": torch.Generator().manual_seed(0),
    }
    rank = min(model.posterior.head.rank, len(x))
    method = ntkgp.LowRank(rank=rank, draws=16, solver=model.posterior.solver, side=model.posterior.side)
    found = ntkgp.fit(model.module, x, y, method=method, **options).predict(new)
    exact = ntkgp.fit(model.module, x, y.double(), method=ntkgp.Exact(), **options).predict(new)
    slack = 1e-5 * exact.variance
    inside = (found.lower <= exact.variance + slack) & (exact.variance <= found.upper + slack)
    return {
        "rows": len(x),
        "queries": len(new),
        "rank": rank,
        "side": method.side,
        "mean_error_in_stds_rms": float(((found.mean - exact.mean) / exact.std).square().mean().sqrt()),
        "mean_error_in_stds_max": float(((found.mean - exact.mean) / exact.std).abs().max()),
        "inside_the_bracket": float(inside.double().mean()),
        "std_ratio_mean": float((found.std / exact.std).mean()),
        "lower_std_ratio_mean": float((found.lower.sqrt() / exact.std).mean()),
        "upper_std_ratio_mean": float((found.upper.sqrt() / exact.std).mean()),
    }


def run(rows: int, folder: Path, fit_options: list[str], seed: int = 0) -> dict[str, Any]:
    """Generate, fit, predict, score."""
    train, model, new, log = folder / "train.csv", folder / "model", folder / "new.csv", folder / "progress.log"
    generate(rows, seed)[0].write_csv(train)
    table, f = generate(rows, seed + 1)
    table.drop("y").write_csv(new)
    fit, said = measured(
        ["fit", str(train), "--target", "y", "--out", str(model), "--force", "--seed", str(seed), *fit_options], log
    )
    print("fit", fit, flush=True)
    predict, _ = measured(["predict", str(model), str(new), "--out", str(folder / "predictions.csv"), "--force"], log)
    print("predict", predict, flush=True)
    mean_only, _ = measured(["predict", str(model), str(new), "--out", str(folder / "mean.csv"), "--force", "--mean-only"], log)
    found = pl.read_csv(folder / "predictions.csv")
    alone = pl.read_csv(folder / "mean.csv")["mean"].to_numpy()
    return {
        "rows": rows,
        "columns": len(COLUMNS),
        "noise_std": NOISE,
        "options": fit_options,
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
        "load_average": os.getloadavg(),
        "csv_megabytes": round(train.stat().st_size / 1e6, 1),
        "model_megabytes": round(sum(path.stat().st_size for path in model.iterdir()) / 1e6, 1),
        "fit": fit,
        "predict": predict,
        "predict_mean_only": mean_only,
        "mean_only_differs_by": float(np.abs(alone - found["mean"].to_numpy()).max()),
        "said": {key: value for key, value in said.items() if key not in ("model",)},
        "against_exact": against_exact(model, min(10_000, rows // 10)),
        "scores": scores(found, table["y"].to_numpy(), f),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--fit-options", default="", help="more options for ntkgp fit, as one string")
    parser.add_argument("--folder", type=Path, help="folder for tables and model; a temporary one if not given")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        record = run(given.rows, folder, shlex.split(given.fit_options))
    save("million_rows_cli" if given.rows == 1_000_000 else f"million_rows_cli-{given.rows}", record, given.out)
    print(json.dumps(record["scores"], indent=1))


if __name__ == "__main__":
    main()
