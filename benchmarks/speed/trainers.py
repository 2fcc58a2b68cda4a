"""Figure 1 by our trainer and by the paper's, side by side in one run: accuracy and time to each one's stopping point.

python -m benchmarks.speed.trainers            run (the paper's Adam takes minutes), save it, print the table
python -m benchmarks.speed.trainers --report   print the table of the last run
"""

import argparse
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.store import load, save
from ntkgp.apps.figure1.figure import Settings, compute
from ntkgp.posterior.trained.training.accelerated import AcceleratedGD
from ntkgp.posterior.trained.training.adam import Adam
from ntkgp.posterior.trained.training.trainer import Trainer

TRAINERS: dict[str, Trainer] = {
    "accelerated GD (default)": AcceleratedGD(),
    "accelerated GD, no metric": AcceleratedGD(metric=False),
    "Adam, the paper's settings": Adam(signal=1.0, max_steps=40_000),
}


def run(seeds: int) -> dict[str, Any]:
    rows = []
    for seed in range(seeds):
        for name, trainer in TRAINERS.items():
            figure = compute(Settings(seed=seed, tail=0), trainer, progress=True)
            error, trained = figure.errors["gradient_descent"], figure.trained
            rows.append({
                "trainer": name, "seed": seed, "mean_error": error["mean"], "std_error": error["std"],
                "steps": max(trained.steps), "seconds": trained.seconds, "stopped_by_itself": all(trained.converged),
            })  # fmt: skip
    return {"rows": rows}


def report(record: dict[str, Any]) -> None:
    rows, default = record["rows"], next(iter(TRAINERS))
    table = Table(title="Gradient-descent panel against the analytic upper bound with 5 eigenvectors (relative L2)")
    for column in (
        "trainer",
        "seed",
        "mean",
        "std",
        "steps",
        "seconds",
        "time ÷ default",
        "std error ÷ default",
        "stopped by itself",
    ):
        table.add_column(column)
    for row in rows:
        ours = next(r for r in rows if r["trainer"] == default and r["seed"] == row["seed"])
        table.add_row(row["trainer"], str(row["seed"]), f"{row['mean_error']:.3%}", f"{row['std_error']:.4%}",
                      str(row["steps"]), f"{row['seconds']:.1f}", f"{row['seconds'] / ours['seconds']:.1f}",
                      f"{row['std_error'] / ours['std_error']:.0f}", "yes" if row["stopped_by_itself"] else "no")  # fmt: skip
    Console(width=150).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", action="store_true", help="only print the table of the last run")
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    if not arguments.report:
        save("trainers", run(arguments.seeds))
    report(load("trainers"))


if __name__ == "__main__":
    import warnings

    from ntkgp import NumericalWarning

    warnings.simplefilter("ignore", NumericalWarning)  # stopping at max_steps is a column of the table
    main()
