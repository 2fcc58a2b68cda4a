"""The table, the summary and the figure of the runs of Bayesian optimisation."""

import statistics
from pathlib import Path

from benchmarks.page import BLUE, GREY, ORANGE, picture, table
from benchmarks.store import Record, save
from benchmarks.studies.runner import Given

FUNCTIONS = ("branin", "hartmann6", "ackley5")
MODELS = {
    "ntkgp": ("NTKGPModel", BLUE),
    "single_task_gp": ("SingleTaskGP", ORANGE),
    "single_task_gp_told": ("SingleTaskGP, told: no noise", GREY),
}
HEAD = ("function", "model", "seeds", "median regret, half-way", "at the end", "quartiles", "best on", "s/step: fit", "search")


def report(records: list[Record], given: Given) -> None:
    """Print the table, write the summary and the figure."""
    rows, lines = summary(records), []
    for row in rows:
        half = row["median"][(row["first"] + len(row["median"])) // 2 - 1]
        lines.append([row["function"], row["model"], str(row["seeds"]), f"{half:.3g}", f"{row['median'][-1]:.3g}",
                      f"{row['lower'][-1]:.2g} – {row['upper'][-1]:.2g}", str(row["best_seeds"]), f"{row['fit_seconds']:.2f}",
                      f"{row['acquisition_seconds']:.2f}"])  # fmt: skip
    print(table(HEAD, lines, compact=True))
    save("bayesopt_summary", {"rows": rows}, given.out)
    draw(rows, given.docs / "bayesopt.png")


def summary(runs: list[Record]) -> list[Record]:
    """Median simple regret and its quartiles, over the seeds that all models have finished."""
    rows = []
    for function in FUNCTIONS:
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


def draw(rows: list[Record], path: Path) -> None:
    """Median and quartiles of the regret against evaluations, a panel for each function."""
    functions = list(dict.fromkeys(row["function"] for row in rows))
    if not functions:
        return
    figure = picture(3.9 * len(functions), 3.3)
    axes = figure.subplots(1, len(functions), squeeze=False)
    for ax, function in zip(axes[0], functions, strict=True):
        for row in (row for row in rows if row["function"] == function):
            label, color = MODELS[row["model"]]
            places = range(row["first"], len(row["median"]) + 1)
            part = slice(row["first"] - 1, None)
            ax.fill_between(places, row["lower"][part], row["upper"][part], color=color, alpha=0.18, linewidth=0)
            ax.plot(places, row["median"][part], color=color, linewidth=1.8, label=label)
        ax.set(yscale="log", title=f"{function}, {row['seeds']} seeds", xlabel="evaluations")  # pyright: ignore
    axes[0][0].set_ylabel("simple regret, median and quartiles")
    axes[0][0].legend(frameon=False)
    figure.savefig(path, dpi=150, metadata={"Software": None})
