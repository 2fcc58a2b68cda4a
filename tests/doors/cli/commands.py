"""Commands run in this process, and tables for them."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from typer.testing import CliRunner, Result

from ntkgp.cli import app

SMALL = ["--width", "8", "--steps", "4", "--starts", "1"]


def run(*arguments: Any, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == code, result.output
    return result


def said(result: Result) -> str:
    """What went to standard error, unwrapped."""
    return " ".join(result.stderr.replace("│", " ").split())


def houses(count: int, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    size, town, lift = rng.uniform(20, 200, count), rng.choice(["Ghent", "Lier"], count), rng.random(count) < 0.5
    noise = rng.choice([4.0, 400.0], count)
    price = size * (1 + 0.5 * (town == "Lier")) + 30 * lift + np.sqrt(noise) * rng.normal(size=count)
    return pl.DataFrame({"size": size, "town": town, "lift": lift, "sensor": np.where(noise > 4, "bad", "good"),
                         "variance": noise, "price": price, "rent": price / 50})  # fmt: skip


def predictions(model: Path, table: pl.DataFrame, folder: Path, *options: str) -> tuple[pl.DataFrame, Result]:
    table.write_csv(folder / "new.csv")
    result = run("predict", model, folder / "new.csv", "--out", folder / "out.csv", "--force", *options)
    return pl.read_csv(folder / "out.csv"), result
