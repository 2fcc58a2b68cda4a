"""The table, the summary and the figure of the runs that are there."""

import statistics
from pathlib import Path
from typing import Any

from benchmarks.bandits.runs import FOLDER, PROBLEMS, finished
from benchmarks.common import save
from ntkgp import plots

FIGURE = Path(__file__).parents[2] / "docs" / "bandits.png"
PUBLISHED = {0.5: 0.95, 0.7: 1.60, 0.9: 4.65, 0.95: 9.56, 0.99: 49.63}  # NeuralLinear, 80,000 contexts, 50 runs
METHODS = {
    "ucb": ("ours, UCB", "#0072B2"),
    "thompson": ("ours, Thompson", "#56B4E9"),
    "linear": ("linear Thompson", "#E69F00"),
    "neural_linear": ("neural-linear", "#D55E00"),
    "epsilon": ("ε-greedy, 0.999ᵗ", "#555555"),
    "epsilon_floor": ("ε-greedy, max(0.995ᵗ, 0.003)", "#AAAAAA"),
}


def report() -> None:
    """Print the table, write the summary and the figure."""
    runs, rows = finished(), []
    print(f"| problem | {' | '.join(label for label, _ in METHODS.values())} | published neural-linear |\n{'|---' * 8}|")
    for name in PROBLEMS:
        cells = []
        for method in METHODS:
            some = [r for r in runs if r["problem"] == name and r["method"] == method]
            if not some:
                cells.append("–")
                continue
            values = [r["percent"] for r in some]
            error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
            row = {"problem": name, "method": method, "seeds": len(values), "mean": statistics.mean(values), "error": error,
                   "cpu_seconds": statistics.mean(r["cpu_seconds"] for r in some), "worst": max(values)}  # fmt: skip
            if some[0]["at_10000"] is not None:
                row["mean_at_10000"] = statistics.mean(r["at_10000"] for r in some)
            rows.append(row)
            cells.append(f"{row['mean']:.2f} ± {error:.2f}")
        published = PUBLISHED.get(float(name.partition("-")[2] or "nan"), "–")
        print(f"| {name} | {' | '.join(cells)} | {published} |")
    save("summary", {"rows": rows, "published": {str(d): v for d, v in PUBLISHED.items()}}, FOLDER)
    draw(runs, FIGURE)


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """Cumulative regret against contexts, a panel for each problem: the mean over seeds, and every seed thinly."""
    figure = plots.figure(11, 6)
    for ax, name in zip(figure.subplots(2, 3).flat, PROBLEMS, strict=True):
        for method, (label, color) in METHODS.items():
            curves = [r["regret_every_100"] for r in runs if r["problem"] == name and r["method"] == method]
            if not curves:
                continue
            places = [100 * (k + 1) for k in range(len(curves[0]))]
            for curve in curves:
                ax.plot(places, curve, color=color, linewidth=0.5, alpha=0.4)
            ax.plot(places, [statistics.mean(v) for v in zip(*curves, strict=True)], color=color, linewidth=1.8, label=label)
        ax.set(title=name.replace("wheel-", "wheel, δ = "), xlabel="contexts", yscale="log", xscale="log")
        ax.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("cumulative regret")
    figure.axes[3].set_ylabel("cumulative regret")
    lines, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=len(METHODS), frameon=False, fontsize=8)
    figure.savefig(path, dpi=130, metadata={"Software": None})
