"""Tables of 15,000 to 57,000 rows, hyper-parameters tuned: what each method takes, and how right its std is.

Ours: a network in two widths, each tuned once on 2,000 rows and then fitted to all of them, with the method that `fit` chooses;
the large one also with draws, though an exact posterior fits. The referee of the std is the exact posterior; where rows are
repeated (keggundirected), that of the distinct rows, each with its mean target and a k-th of the noise, which is the same
posterior. `sharpen` is another referee, which needs no dense matrix.

GPyTorch: an ARD squared-exponential kernel. The exact GP is tuned on the same 2,000 rows and then given all, by Cholesky and by
conjugate gradients with GPyTorch's defaults; SGPR and SVGP are trained on all rows. The std of conjugate gradients is held
against Cholesky's with the same hyper-parameters.

Each row in a process of its own, two threads: python -m benchmarks.speed.large_tables --data-dir DIR
"""

import argparse
import resource
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import ntkgp
from benchmarks import uci
from benchmarks.measure import Peak, isolated
from benchmarks.methods.gpytorch_models import Answer, exact, sgpr
from benchmarks.methods.gpytorch_svgp import svgp
from benchmarks.scores import score
from benchmarks.store import RESULTS, load, save

SETS = ("elevators", "bike", "keggundirected")
FULL = {"rows": 10**9, "small": 64, "large": 128, "sharpened": 20}  # at most so many rows, widths, sharpened queries
TUNING_ROWS = 2000
LIMIT = 900.0  # seconds that a row may take
MEMORY = 20 * 2**30  # bytes that a row may ask for: more fails, instead of stopping the machine

METHODS: dict[str, Callable[[Tensor, Tensor, Tensor, int], Answer]] = {
    "Cholesky": lambda *data: exact(*data, cholesky=True),
    "CG": lambda *data: exact(*data, cholesky=False),
    "SGPR": sgpr,
    "SVGP": svgp,
}


def tuned(folder: str, name: str, rows: int, width: int, out: str) -> dict[str, Any]:
    """Tune a network on some rows and store it, for all methods of its width."""
    torch.set_num_threads(2)
    split = uci.load(Path(folder), name, "random", 0)
    g = torch.Generator().manual_seed(0)
    net = ntkgp.mlp(split.x.shape[1], width=width, activation=torch.nn.SiLU(), generator=g).double()
    start = time.perf_counter()
    found = ntkgp.tune(
        net, split.x[:rows], split.y[:rows], points=TUNING_ROWS, starts=1, steps=60, hyper_prior=1.0, generator=g
    )
    torch.save(found, out)
    noise = float(torch.as_tensor(found.noise_var)) ** 0.5
    return {"width": width, "tune_seconds": time.perf_counter() - start, "noise_std": noise}


@dataclass(frozen=True)
class Case:
    """One split and what answers are compared with."""

    split: uci.Split
    rows: int

    @staticmethod
    def of(folder: str, name: str, rows: int) -> "Case":
        """The first split, and so many of its rows."""
        return Case(uci.load(Path(folder), name, "random", 0), rows)

    @property
    def x(self) -> Tensor:
        """Training inputs."""
        return self.split.x[: self.rows]

    @property
    def y(self) -> Tensor:
        """Training targets."""
        return self.split.y[: self.rows]

    def scores(self, mean: Tensor, epistemic: Tensor, noise_var: float) -> dict[str, Any]:
        """Scores of a prediction on all test points, and on those without a copy among the training points."""
        forecast = self.split.forecast(mean, (epistemic.square() + noise_var).sqrt())
        fresh = ~self.split.repeated
        apart = score(forecast.at(fresh), self.split.y_test[fresh])
        return {**score(forecast, self.split.y_test), "nll_without_copies": apart["nll"], "test_points": len(fresh)}


def distinct(x: Tensor, y: Tensor, noise_var: float) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct rows, with the mean target and the noise variance of all their copies."""
    rows, index, counts = x.unique(dim=0, return_inverse=True, return_counts=True)
    return rows, torch.zeros(len(rows), dtype=y.dtype).index_add_(0, index, y) / counts, noise_var / counts.double()


def ours(folder: str, name: str, rows: int, network: str, method: str, sharpened: int, out: str) -> dict[str, Any]:
    """One method of ours on one tuned network."""
    torch.set_num_threads(2)
    warnings.simplefilter("ignore", ntkgp.NumericalWarning)
    case, found = Case.of(folder, name, rows), torch.load(network, weights_only=False)
    noise_var, new = float(torch.as_tensor(found.noise_var)), case.split.x_test
    methods = {"default": None, "exact": ntkgp.Exact(), "draws": ntkgp.LowRank(draws=64)}
    x, y = case.x, case.y
    if method == "exact":
        x, y, noise = distinct(x, y, noise_var)
        found = ntkgp.tuning.Tuned(**{**vars(found), "noise_var": noise})
    with Peak() as peak:
        start = time.perf_counter()
        posterior = found.fit(x, y, method=methods[method], generator=torch.Generator().manual_seed(1))
        fit_seconds = time.perf_counter() - start
        start = time.perf_counter()
        p = posterior.predict(new, noise_var=noise_var)
        query_seconds = time.perf_counter() - start
    answers = {"mean": p.mean, "std": p.std, "lower": p.lower, "upper": p.upper}
    row = {
        "choice": posterior.choice, "parameters": posterior.problem.operators.parameters, "rows": len(x),
        "fit_seconds": fit_seconds, "query_seconds": query_seconds, "peak_bytes": peak.bytes,
        **case.scores(p.mean, p.std, noise_var),
        "epistemic_share": float((p.variance / (p.variance + noise_var)).mean()),
    }  # fmt: skip
    if sharpened:
        start = time.perf_counter()
        sharp = posterior.sharpen(new[:sharpened], rtol=0.01)
        row |= {"sharpened": sharpened, "sharpen_seconds": time.perf_counter() - start}
        row["widest_sharp_bracket"] = float((1 - sharp.lower / sharp.upper).max())
        answers["sharp"] = sharp.std
    torch.save(answers, out)
    return row


def theirs(folder: str, name: str, rows: int, method: str, out: str) -> dict[str, Any]:
    """One method of GPyTorch; the search for its hyper-parameters is part of its time."""
    torch.set_num_threads(2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    case = Case.of(folder, name, rows)
    with Peak() as peak:
        start = time.perf_counter()
        mean, std, noise_var = METHODS[method](case.x, case.y, case.split.x_test, TUNING_ROWS)
        seconds = time.perf_counter() - start
    torch.save({"mean": mean, "std": std}, out)
    return {"seconds": seconds, "peak_bytes": peak.bytes, "noise_std": noise_var**0.5, **case.scores(mean, std, noise_var)}


def compared(answers: Path, referee: Path) -> dict[str, float]:
    """Errors of a stored std against a stored exact one, and of `sharpen` if there is one."""
    if not answers.exists() or not referee.exists():
        return {}
    one, exact = torch.load(answers), torch.load(referee)["std"]
    found = {
        "std_error": float((one["std"] - exact).norm() / exact.norm()),
        "ratio_5": float((one["std"] / exact).quantile(0.05)),
        "ratio_95": float((one["std"] / exact).quantile(0.95)),
    }
    if "lower" in one:
        held = (one["lower"] <= exact.square() * (1 + 1e-6)) & (exact.square() <= one["upper"] * (1 + 1e-6))
        found["inside"] = float(held.double().mean())
    if "sharp" in one:
        sharp = one["sharp"]
        found["sharp_std_error"] = float((sharp - exact[: len(sharp)]).norm() / sharp.norm())
        found["std_error_by_sharpen"] = float((one["std"][: len(sharp)] - sharp).norm() / sharp.norm())
    return found


def run(folder: str, name: str, sizes: dict[str, int]) -> dict[str, Any]:
    """All rows of one set."""
    here, rows = "benchmarks.speed.large_tables", {}
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)

        def row(label: str, function: str, referee: str | None, **arguments: Any) -> None:
            out = place / f"{len(rows)}.pt"
            known = {"folder": folder, "name": name, "rows": sizes["rows"], "out": str(out)}
            rows[label] = isolated(f"{here}:{function}", {**known, **arguments}, timeout=LIMIT)
            if referee is not None:
                rows[label] |= compared(out, place / f"{list(rows).index(referee)}.pt")
            print(label, rows[label], flush=True)

        networks = {}
        for key in ("small", "large"):
            networks[key] = str(place / f"{key}.net")
            tune = {"folder": folder, "name": name, "rows": sizes["rows"], "width": sizes[key], "out": networks[key]}
            rows[f"tune {key}"] = isolated(f"{here}:tuned", tune, timeout=LIMIT)
            print(f"tune {key}", rows[f"tune {key}"], flush=True)
        for key in ("small", "large"):
            exact = f"{key} network, exact"
            row(exact, "ours", None, network=networks[key], method="exact", sharpened=0)
            row(f"{key} network, default", "ours", exact, network=networks[key], method="default", sharpened=0)
        row(
            "large network, LowRank(draws=64)", "ours", "large network, exact", network=networks["large"], method="draws",
            sharpened=sizes["sharpened"],
        )  # fmt: skip
        for method in METHODS:
            row(f"GPyTorch {method}", "theirs", "GPyTorch Cholesky" if method == "CG" else None, method=method)
    return {"split": 0, **sizes, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--quick", action="store_true", help="the first 600 rows")
    given = parser.parse_args()
    name = "large_tables-quick" if given.quick else "large_tables"
    sizes = {"rows": 600, "small": 16, "large": 32, "sharpened": 20} if given.quick else FULL
    for table in given.sets.split(","):
        found = run(given.data_dir, table, sizes)
        before = load(name) if (RESULTS / f"{name}.jsonl").exists() else {}
        before.pop("environment", None)
        print(save(name, {**before, table: found}, packages=("gpytorch", "linear_operator")))


if __name__ == "__main__":
    main()
