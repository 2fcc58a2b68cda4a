"""The table, the summary and the figure of the bandit runs."""

import statistics
from pathlib import Path

from benchmarks.page import AMBER, BLUE, GREY, LIGHT, ORANGE, SKY, picture, table
from benchmarks.store import Record, save
from benchmarks.studies.runner import Given

PROBLEMS = ("wheel-0.5", "wheel-0.7", "wheel-0.9", "wheel-0.95", "wheel-0.99", "generated")
PUBLISHED = {0.5: 0.95, 0.7: 1.60, 0.9: 4.65, 0.95: 9.56, 0.99: 49.63}  # NeuralLinear, 80,000 contexts, 50 runs
METHODS = {
    "ucb": ("ours, UCB", BLUE),
    "thompson": ("ours, Thompson", SKY),
    "linear": ("linear Thompson", AMBER),
    "neural_linear": ("neural-linear", ORANGE),
    "epsilon": ("ε-greedy, 0.999ᵗ", GREY),
    "epsilon_floor": ("ε-greedy, max(0.995ᵗ, 0.003)", LIGHT),
}


def report(records: list[Record], given: Given) -> None:
    """Print the table, write the summary and the figure."""
    rows, lines = [], []
    for problem in PROBLEMS:
        cells = []
        for method in METHODS:
            some = [r for r in records if r["problem"] == problem and r["method"] == method]
            if not some:
                cells.append("–")
                continue
            rows.append(_summary(problem, method, some))
            cells.append(f"{rows[-1]['mean']:.2f} ± {rows[-1]['error']:.2f}")
        published = PUBLISHED.get(float(problem.partition("-")[2] or "nan"), "–")
        lines.append([problem, *cells, str(published)])
    print(table(("problem", *(label for label, _ in METHODS.values()), "published neural-linear"), lines, compact=True))
    save("bandits_summary", {"rows": rows, "published": {str(d): v for d, v in PUBLISHED.items()}}, given.out)
    draw(records, given.docs / "bandits.png")


def _summary(problem: str, method: str, some: list[Record]) -> Record:
    values = [r["percent"] for r in some]
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    row = {"problem": problem, "method": method, "seeds": len(values), "mean": statistics.mean(values), "error": error,
           "cpu_seconds": statistics.mean(r["cpu_seconds"] for r in some), "worst": max(values)}  # fmt: skip
    if some[0]["at_10000"] is not None:
        row["mean_at_10000"] = statistics.mean(r["at_10000"] for r in some)
    return row


def draw(records: list[Record], path: Path) -> None:
    """Cumulative regret against contexts, a panel for each problem: the mean over seeds, and every seed thinly."""
    figure = picture(11, 6)
    for ax, name in zip(figure.subplots(2, 3).flat, PROBLEMS, strict=True):
        for method, (label, color) in METHODS.items():
            curves = [r["regret_every_100"] for r in records if r["problem"] == name and r["method"] == method]
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
