"""Bayesian optimisation: ``NTKGPModel`` and BoTorch's ``SingleTaskGP`` with the same acquisition function and budget.

``SingleTaskGP`` runs twice: as it comes, and told that there is no noise (else it infers it, with a prior that expects some).

Each run starts from the same 2(d + 1) Sobol points and evaluates one point at a time, where logarithmic expected improvement is
highest; inputs in the unit cube, targets standardised, no noise. A JSON for each function, seed and model: a run that has one
is not repeated. Ackley's function is taken on [-5, 10]⁵, so that its optimum is not the centre of the cube.

python -m benchmarks.bayesopt                        hours; stops and goes on where it was
python -m benchmarks.bayesopt --functions branin     some minutes a seed
python -m benchmarks.bayesopt --report               table, summary.json and docs/bayesopt.png of what is there
"""

import argparse
import json
import statistics
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.optim import optimize_acqf
from botorch.test_functions import Ackley, Branin, Hartmann
from botorch.test_functions.base import BaseTestProblem
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.common import RESULTS, save
from ntkgp.botorch import NTKGPModel

FOLDER = RESULTS / "bayesopt"
FIGURE = Path(__file__).parents[1] / "docs" / "bayesopt.png"
SETTINGS: dict[str, Any] = {"num_restarts": 4, "raw_samples": 256, "options": {"maxiter": 100}}


class Task(NamedTuple):
    """A function to be maximised, and how many points may be evaluated after the first ones."""

    problem: BaseTestProblem
    steps: int


TASKS = {
    "branin": Task(Branin(negate=True).double(), 30),
    "hartmann6": Task(Hartmann(dim=6, negate=True).double(), 50),
    "ackley5": Task(Ackley(dim=5, negate=True, bounds=[(-5.0, 10.0)] * 5).double(), 50),
}


def ntkgp_model(X: Tensor, Y: Tensor, seed: int) -> Model:
    """Ours as it comes; other weights for every number of points."""
    return NTKGPModel(X, Y, generator=torch.Generator().manual_seed(1000 * seed + len(X)))


def single_task_gp(X: Tensor, Y: Tensor, seed: int) -> Model:
    """BoTorch's as it comes: it infers the noise, with a prior that expects some."""
    return fitted(SingleTaskGP(X, Y))


def single_task_gp_told(X: Tensor, Y: Tensor, seed: int) -> Model:
    """BoTorch's, told that there is no noise (as much of the targets' variance as ours may go down to)."""
    return fitted(SingleTaskGP(X, Y, train_Yvar=(1e-6 * Y.var()).expand_as(Y)))


def fitted(model: SingleTaskGP) -> SingleTaskGP:
    """With hyper-parameters by BoTorch's own routine."""
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


MODELS = {"ntkgp": ntkgp_model, "single_task_gp": single_task_gp, "single_task_gp_told": single_task_gp_told}
LABELS = {
    "ntkgp": ("NTKGPModel", "#0072B2"),
    "single_task_gp": ("SingleTaskGP", "#D55E00"),
    "single_task_gp_told": ("SingleTaskGP, told: no noise", "#555555"),
}


def run(function: str, seed: int, model: str) -> dict[str, Any]:
    """One optimisation from start to end."""
    torch.manual_seed(seed)
    problem, steps = TASKS[function]
    dim = problem.dim
    cube = torch.tensor([[0.0] * dim, [1.0] * dim], dtype=torch.float64)
    low, high = torch.as_tensor(problem.bounds)
    X = draw_sobol_samples(cube, 1, 2 * (dim + 1), seed=seed)[0]
    Y = problem(low + (high - low) * X).unsqueeze(1)
    fitting, searching = 0.0, 0.0
    for _ in range(steps):
        start = time.process_time()
        surrogate = MODELS[model](X, Y, seed)
        fitted = time.process_time()
        new, _ = optimize_acqf(LogExpectedImprovement(surrogate, best_f=Y.max()), cube, q=1, **SETTINGS)
        fitting, searching = fitting + fitted - start, searching + time.process_time() - fitted
        X, Y = torch.cat([X, new]), torch.cat([Y, problem(low + (high - low) * new).unsqueeze(1)])
    regret = torch.as_tensor(problem.optimal_value) - Y[:, 0].cummax(dim=0).values
    return {
        "function": function, "seed": seed, "model": model, "first": 2 * (dim + 1), "acquisition": "LogEI",
        "settings": SETTINGS, "values": Y[:, 0].tolist(), "regret": regret.tolist(),
        "seconds": {"fit": fitting, "acquisition": searching},
    }  # fmt: skip


def finished() -> list[dict[str, Any]]:
    """Every run that has its JSON."""
    names = [f"{function}-{seed}-{model}.json" for function in TASKS for seed in range(100) for model in MODELS]
    return [json.loads((FOLDER / name).read_text()) for name in names if (FOLDER / name).exists()]


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Median simple regret and its quartiles, over the seeds that all models have finished."""
    rows = []
    for function in TASKS:
        seeds = [{r["seed"] for r in runs if r["function"] == function and r["model"] == model} for model in MODELS]
        common = sorted(set.intersection(*seeds))
        if len(common) < 2:
            continue
        last = {}
        for model in MODELS:
            chosen = [r for r in runs if r["function"] == function and r["model"] == model and r["seed"] in common]
            curves = list(zip(*(r["regret"] for r in chosen), strict=True))
            quartiles = [statistics.quantiles(curve, n=4, method="inclusive") for curve in curves]
            steps = len(curves) - chosen[0]["first"]
            last[model] = {r["seed"]: r["regret"][-1] for r in chosen}
            rows.append({
                "function": function, "model": model, "seeds": len(common), "first": chosen[0]["first"],
                "median": [q[1] for q in quartiles], "lower": [q[0] for q in quartiles], "upper": [q[2] for q in quartiles],
                "fit_seconds": statistics.mean(r["seconds"]["fit"] for r in chosen) / steps,
                "acquisition_seconds": statistics.mean(r["seconds"]["acquisition"] for r in chosen) / steps,
            })  # fmt: skip
        for row in rows[-len(MODELS) :]:
            row["best_seeds"] = sum(last[row["model"]][seed] <= min(last[name][seed] for name in MODELS) for seed in common)
    return rows


def report() -> None:
    """Print the table, write the summary and the figure."""
    rows = summary(finished())
    print("| function | model | seeds | median regret, half-way | at the end | quartiles | best on | s/step: fit | search |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        half = row["median"][(row["first"] + len(row["median"])) // 2 - 1]
        print(
            f"| {row['function']} | {row['model']} | {row['seeds']} | {half:.3g} | {row['median'][-1]:.3g} | "
            f"{row['lower'][-1]:.2g} – {row['upper'][-1]:.2g} | {row['best_seeds']} | {row['fit_seconds']:.2f} | "
            f"{row['acquisition_seconds']:.2f} |"
        )
    save("summary", {"rows": rows}, FOLDER)
    draw(rows, FIGURE)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Median and quartiles of the regret against evaluations, a panel for each function."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    functions = list(dict.fromkeys(row["function"] for row in rows))
    if not functions:
        return
    figure, axes = plt.subplots(1, len(functions), figsize=(3.9 * len(functions), 3.3), layout="constrained", squeeze=False)
    for ax, function in zip(axes[0], functions, strict=True):
        for row in (row for row in rows if row["function"] == function):
            label, color = LABELS[row["model"]]
            places = range(row["first"], len(row["median"]) + 1)
            part = slice(row["first"] - 1, None)
            ax.fill_between(places, row["lower"][part], row["upper"][part], color=color, alpha=0.18, linewidth=0)
            ax.plot(places, row["median"][part], color=color, linewidth=1.8, label=label)
        ax.set(yscale="log", title=f"{function}, {row['seeds']} seeds", xlabel="evaluations")  # pyright: ignore
    axes[0][0].set_ylabel("simple regret, median and quartiles")
    axes[0][0].legend(frameon=False)
    figure.savefig(path, dpi=150, metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--functions", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--report", action="store_true")
    chosen = parser.parse_args()
    if chosen.report:
        report()
        return
    warnings.simplefilter("ignore")
    for function in chosen.functions:
        for seed in range(chosen.seeds):
            for model in chosen.models:
                name = f"{function}-{seed}-{model}"
                if not (FOLDER / f"{name}.json").exists():
                    record = run(function, seed, model)
                    save(name, record, FOLDER)
                    print(f"{name}: regret {record['regret'][-1]:.4g}", flush=True)


if __name__ == "__main__":
    main()
