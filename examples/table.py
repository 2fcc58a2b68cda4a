"""A table from the command line: fit, predict and evaluate without a line of Python.

The script makes a table of flats, with numbers and categories, and runs the commands as a shell would. The picture shows the
predictions of ``ntkgp predict``: rents against size, with intervals that are wider where there are few flats.

Run with ``python examples/table.py``, which writes ``table.png``; ``NTKGP_SMALL=1`` makes it a smoke test.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl

from ntkgp import plots

SMALL = os.environ.get("NTKGP_SMALL") == "1"
ROWS, OPTIONS = (60, ["--width", "16", "--steps", "5", "--starts", "1"]) if SMALL else (300, ["--width", "128"])


def flats(rows: int, rng: np.random.Generator) -> pl.DataFrame:
    """Rents that grow with size, faster in town; old flats are cheaper."""
    size, age = rng.gamma(6, 12, rows).clip(15, 200), rng.uniform(0, 100, rows)
    place = rng.choice(["town", "suburb", "village"], rows)
    slope = np.select([place == "town", place == "suburb"], [14.0, 10.0], 7.0)
    rent = 200 + slope * size - 2 * age + 60 * rng.normal(size=rows)
    return pl.DataFrame({"size": size, "age": age, "place": place, "rent": rent})


def ntkgp(*arguments: str | Path) -> None:
    """Print one command and run it."""
    print("$ ntkgp", *(a.name if isinstance(a, Path) else a for a in arguments), flush=True)
    command = Path(sys.executable).with_name("ntkgp")
    done = subprocess.run([command, *map(str, arguments)], stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout.replace(f"{Path(arguments[1]).parent}{os.sep}", ""))


def main() -> None:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        train, test, new, model, answers, report = (
            Path(folder, name) for name in ("train.csv", "test.csv", "new.csv", "model", "answers.csv", "report")
        )
        flats(ROWS, rng).write_csv(train)
        flats(ROWS, rng).write_csv(test)
        sizes = pl.DataFrame({"size": np.linspace(10, 260, 80), "age": np.full(80, 50.0)})
        pl.concat([sizes.with_columns(place=pl.lit(place)) for place in ("town", "village")]).write_csv(new)

        ntkgp("fit", train, "--target", "rent", "--out", model, *OPTIONS)
        ntkgp("evaluate", model, test, "--out", report)
        ntkgp("predict", model, new, "--out", answers)
        seen, asked = pl.read_csv(train), pl.concat([pl.read_csv(new), pl.read_csv(answers)], how="horizontal")

    figure = plots.figure(8, 4)
    ax = figure.subplots()
    for place, color in {"town": plots.MEAN, "village": "#009E73"}.items():
        line, flat = asked.filter(pl.col("place") == place), seen.filter(pl.col("place") == place)
        ax.fill_between(line["size"], line["lower"], line["upper"], color=color, alpha=0.2, linewidth=0)
        ax.plot(line["size"], line["mean"], color=color, linewidth=1.8, label=place)
        ax.plot(flat["size"], flat["rent"], "o", color=color, markersize=3, markeredgecolor="white", markeredgewidth=0.4)
    ax.set(xlabel="size", ylabel="rent")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    figure.savefig("table.png", dpi=120)


if __name__ == "__main__":
    main()
