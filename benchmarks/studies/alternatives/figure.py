"""The picture of the alternatives: a row for each method, a column for each toy, each over the exact posterior.

python -m benchmarks.studies.alternatives.figure              compute the rows that are missing
python -m benchmarks.studies.alternatives.figure --report     draw docs/alternatives.png
"""

import argparse
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.page import picture
from benchmarks.store import Record
from benchmarks.studies.alternatives.toys import ROWS, SIDE, Toy, panel, toys
from benchmarks.studies.runner import Given, Job, Study, main
from ntkgp.apps.plots.style import DATA, MEAN, TRUTH


def options(parser: argparse.ArgumentParser) -> None:
    """None of its own."""


def jobs(given: Given) -> Iterator[Job]:
    """One for each row."""
    yield from ({"label": row.label} for row in ROWS)


def run(job: Job, given: Given) -> Record:
    """The panels of a row."""
    for name in ("laplace", "laplace.curvature", "pyro.infer"):  # loading them is not part of any method's cost
        importlib.import_module(name)
    (row,) = (row for row in ROWS if row.label == job["label"])
    return {"panels": {name: panel(row, toy) for name, toy in toys().items()}}


def line(record: Record) -> str:
    return "cost " + ", ".join(f"{found['cost']:.2f}" for found in record["panels"].values())


def report(records: list[Record], given: Given) -> None:
    """Draw the picture, its rows in the order of the methods."""
    order = [row.label for row in ROWS]
    path = given.docs / "alternatives.png"
    draw(sorted(records, key=lambda record: order.index(record["label"])), path)
    print(path)


def draw(rows: list[Record], path: Path) -> None:
    """All panels; the axes of a column are shared, and so are the colours of the maps."""
    columns = toys()
    figure = picture(10.5, 1.5 * len(rows) + 0.9)
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
    label = "mean ± 2 epistemic std"
    ax.fill_between(x, mean - 2 * std, mean + 2 * std, color=MEAN, alpha=0.25, linewidth=0, label=label)
    ax.plot(x, mean, color=MEAN, linewidth=1.6)
    mean, std = np.array(exact["mean"]), np.array(exact["std"])
    ax.plot(x, mean, color="black", linewidth=0.8, linestyle=(0, (4, 2)), label="exact posterior: mean")
    for side in (-2, 2):
        label = "exact posterior: ± 2 std" if side > 0 else None
        ax.plot(x, mean + side * std, color="black", linewidth=0.6, linestyle=":", label=label)
    edge = {"markeredgecolor": "white", "markeredgewidth": 0.4}
    ax.plot(toy.data[:, 0], toy.split.y, "o", color=DATA, markersize=3, label="data", **edge)
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


STUDY = Study("alternatives_figure", __doc__ or "", ("label",), options, jobs, run, line, report)

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
