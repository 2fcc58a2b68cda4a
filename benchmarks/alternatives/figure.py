"""The picture: a row a method, a column a toy, each over the exact posterior.

python -m benchmarks.alternatives.figure              computes, writes benchmarks/results/alternatives/figure.json, draws
python -m benchmarks.alternatives.figure --redraw     draws again from the JSON
"""

import argparse
import importlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.alternatives.toys import ROWS, SIDE, Toy, panel, toys
from benchmarks.common import RESULTS, read, save
from benchmarks.report import DOCS
from ntkgp.plots import DATA, MEAN, TRUTH

Record = dict[str, Any]
NAME = "alternatives.png"


def compute() -> Record:
    """Every panel's numbers."""
    torch.set_num_threads(1)  # costs are CPU time
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("laplace", "laplace.curvature", "pyro.infer"):  # what is loaded at first use is nobody's cost
            importlib.import_module(name)
        for row in ROWS:
            rows.append({"label": row.label, "panels": {name: panel(row, toy) for name, toy in toys().items()}})
            costs = ", ".join(f"{found['cost']:.2f}" for found in rows[-1]["panels"].values())
            print(row.label.replace("\n", ", "), "cost", costs, flush=True)
    return {"rows": rows}


def draw(record: Record, path: Path) -> None:
    """All panels; the axes of a column are shared, and so are the colours of the maps."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns, rows = toys(), record["rows"]
    figure = plt.figure(figsize=(10.5, 1.5 * len(rows) + 0.9), layout="constrained")
    axes = figure.subplots(len(rows), 4, width_ratios=(1.15, 2, 2, 1.0), sharex="col", squeeze=False)
    exact = rows[0]["panels"]
    top = float(np.max(exact["a plane"]["std"]))
    image = None
    for k, (row, line) in enumerate(zip(rows, axes, strict=True)):
        _label(line[0], row)
        for ax, (name, toy) in zip(line[1:], columns.items(), strict=True):
            found = row["panels"][name]
            if toy.at.shape[1] == 1:
                _curve(ax, toy, found, found.get("claimed", exact[name]))
                _limits(ax, exact[name], toy)
            else:
                image = _map(ax, toy, found, top)
            if k > 0 and "std_error" in found:  # the others claim no such posterior
                errors = f"mean {found['mean_error']:.1%}, std {found['std_error']:.1%}"
                note = f"error: {errors}" if toy.at.shape[1] == 1 else errors
                box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1.0}
                ax.annotate(note, (0.02, 0.03), xycoords="axes fraction", fontsize=6.5, color=TRUTH, bbox=box)
            if k == 0:
                ax.set_title(name, fontsize=11)
    assert image is not None
    bar = figure.colorbar(image, ax=axes[:, 3], location="bottom", shrink=0.9, aspect=18, pad=0.004, extend="max")
    bar.set_label("epistemic std", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    handles, labels = axes[0, 1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=4, fontsize=8, frameon=False)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def _label(ax: Any, row: Record) -> None:
    """Name and cost of a method, in place of a panel."""
    ax.axis("off")
    name, *rest = row["label"].split("\n")
    cost = float(np.median([found["cost"] for found in row["panels"].values()]))
    ax.annotate(name, (0.0, 0.78), xycoords="axes fraction", fontsize=9.5, fontweight="bold")
    trained = f"cost {cost:.2g} × one network" if cost >= 0.01 else "cost < 0.01 × one network"
    ax.annotate("\n".join([*rest, trained]), (0.0, 0.72), xycoords="axes fraction", fontsize=8, color=TRUTH, va="top")


def _curve(ax: Any, toy: Toy, found: Record, exact: Record) -> None:
    x, mean, std = toy.at[:, 0].numpy(), np.array(found["mean"]), np.array(found["std"])
    ax.fill_between(x, mean - 2 * std, mean + 2 * std, color=MEAN, alpha=0.25, linewidth=0, label="mean ± 2 epistemic std")
    ax.plot(x, mean, color=MEAN, linewidth=1.6)
    mean, std = np.array(exact["mean"]), np.array(exact["std"])
    ax.plot(x, mean, color="black", linewidth=0.8, linestyle=(0, (4, 2)), label="exact posterior: mean")
    for side in (-2, 2):
        label = "exact posterior: ± 2 std" if side > 0 else None
        ax.plot(x, mean + side * std, color="black", linewidth=0.6, linestyle=":", label=label)
    ax.plot(
        toy.data[:, 0], toy.split.y, "o", color=DATA, markersize=3, markeredgecolor="white", markeredgewidth=0.4, label="data"
    )
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=7)


def _limits(ax: Any, exact: Record, toy: Toy) -> None:
    mean, std, y = np.array(exact["mean"]), np.array(exact["std"]), toy.split.y.numpy()
    low, high = min((mean - 2 * std).min(), y.min()), max((mean + 2 * std).max(), y.max())
    ax.set(ylim=(low - 0.12 * (high - low), high + 0.05 * (high - low)), xlim=(float(toy.at[0]), float(toy.at[-1])))


def _map(ax: Any, toy: Toy, found: Record, top: float) -> Any:
    side = round(len(toy.at) ** 0.5)
    std = np.array(found["std"]).reshape(side, side).T
    reach = (*toy.at[0].tolist(), *toy.at[-1].tolist())
    image = ax.imshow(std, origin="lower", extent=(reach[0], reach[2], reach[1], reach[3]), vmin=0, vmax=top, cmap="cividis",
                      aspect="equal", interpolation="bilinear" if SIDE > 20 else "nearest")  # fmt: skip
    ax.plot(*toy.data.T, "o", color=DATA, markersize=2.2, markeredgecolor="white", markeredgewidth=0.3)
    ax.tick_params(labelsize=7)
    return image


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redraw", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS / "alternatives")
    parser.add_argument("--docs", type=Path, default=DOCS)
    given = parser.parse_args(arguments)
    if not given.redraw:
        save("figure", compute(), given.results)
    given.docs.mkdir(parents=True, exist_ok=True)
    draw(read("figure", given.results), given.docs / NAME)
    print(given.docs / NAME)


if __name__ == "__main__":
    main()
