"""Columns of tables: categories, missing values, types; what cannot be used is named."""

import json
from pathlib import Path

import numpy as np
import polars as pl

from ntkgp.apps.tables.columns import Column, encode
from tests.doors.cli.commands import SMALL, houses, predictions, run, said


def test_categories_never_seen_count_as_none_and_are_named(home: Path, tmp_path: Path):
    new = houses(3).with_columns(town=pl.Series(["Ghent", "Paris", "Rome"]))
    out, result = predictions(home / "model", new, tmp_path)
    assert "warning: column 'town' of" in said(result)
    assert "Paris, Rome" in said(result)
    assert out["mean"].is_finite().all()
    column = Column("town", "category", ("Ghent", "Lier"))
    assert encode(new, [column]).tolist() == [[1, 0], [0, 0], [0, 0]]


def test_a_category_of_digits_stays_a_category(tmp_path: Path):
    """A file with only the digits among the categories would otherwise be read as numbers."""
    pl.DataFrame({"code": ["1", "2", "x"] * 5, "y": np.arange(15.0)}).write_csv(tmp_path / "train.csv")
    run("fit", tmp_path / "train.csv", "--target", "y", "--out", tmp_path / "model", "--quiet", *SMALL)
    out, result = predictions(tmp_path / "model", pl.DataFrame({"code": [1, 2]}), tmp_path)
    assert len(out) == 2
    assert "warning" not in result.stderr


def test_missing_values_are_named_and_can_be_dropped(home: Path, tmp_path: Path):
    holes = houses(30).with_columns(size=pl.Series([None if k in (3, 7) else float(k) for k in range(30)]))
    holes.write_csv(tmp_path / "holes.csv")
    fit = ["fit", tmp_path / "holes.csv", "--target", "price", "--out", tmp_path / "model", *SMALL]
    refused = run(*fit, code=2)
    assert "column 'size' has a missing value (empty, NA, NaN, null, ? or the like) in 2 of 30 rows: rows 4, 8" in said(refused)
    assert "--drop-missing" in said(refused)
    assert json.loads(run(*fit, "--drop-missing", "--json").stdout)["rows"] == 28
    assert "'size'" in said(run("predict", home / "model", tmp_path / "holes.csv", code=2))
    out, result = predictions(home / "model", holes, tmp_path, "--drop-missing")
    assert "28 of 30 rows" in result.stdout
    assert out["mean"].is_null().arg_true().to_list() == [3, 7]
    whole, _ = predictions(home / "model", holes.drop_nulls(), tmp_path)
    np.testing.assert_allclose(out.drop_nulls().to_numpy(), whole.to_numpy(), rtol=1e-9)


def test_columns_that_are_missing_retyped_or_unknown_are_named(home: Path, tmp_path: Path):
    def attempt(table: pl.DataFrame, code: int) -> str:
        table.write_parquet(tmp_path / "new.parquet")
        return said(run("predict", home / "model", tmp_path / "new.parquet", "--out", tmp_path / "p.csv", code=code))

    assert "has no column 'town'; its columns are 'size'" in attempt(houses(3).drop("town"), 2)
    retyped = attempt(houses(3).with_columns(size=pl.Series(["small", "large", "large"])), 2)
    assert "column 'size' must hold numbers, but 3 of 3 rows do not: 'small' in row 1, 'large' in row 2, " in retyped
    assert "'lift' held booleans" in attempt(houses(3).with_columns(lift=pl.Series([0, 1, 1])), 2)
    assert "columns that the training table did not have; they are ignored: colour" in attempt(
        houses(3).with_columns(colour=pl.lit("red")), 0
    )


def test_tables_that_cannot_be_used(home: Path, tmp_path: Path):
    def attempt(table: pl.DataFrame | str, *options: str) -> str:
        path = tmp_path / "table.csv"
        table.write_csv(path) if isinstance(table, pl.DataFrame) else path.write_text(table)
        return said(run("fit", path, "--target", "y", "--out", tmp_path / "model", *options, *SMALL, code=2))

    numbers = pl.DataFrame({"x": [1.0, 2.0, 3.0], "y": [1.0, 2.0, 3.0]})
    assert "has no column 'z'; its columns are x, y" in attempt(numbers, "--ignore", "z")
    assert "no column left for features" in attempt(numbers, "--ignore", "x")
    assert "'y' must hold numbers, but 3 of 3 rows do not: 'a' in row 1" in attempt(numbers.with_columns(y=pl.lit("a")))
    assert "has no rows" in attempt("x,y\n")
    assert "cannot be read" in attempt("x,y\n1,2\n1,2,3\n")
    names = pl.DataFrame({"id": [f"row {k}" for k in range(101)], "y": np.arange(101.0)})
    assert "'id' holds 101 different texts, such as 'row 0'" in attempt(names)
    pl.DataFrame(
        {"day": pl.date_range(pl.date(2020, 1, 1), pl.date(2020, 1, 3), eager=True), "y": [1.0, 2.0, 3.0]}
    ).write_parquet(tmp_path / "dates.parquet")
    assert "'day' has type Date" in said(run("fit", tmp_path / "dates.parquet", "--target", "y", code=2))
    assert "there is no file" in said(run("fit", tmp_path / "none.csv", "--target", "y", code=2))
    assert "must end in .csv, .tsv or .parquet" in said(run("fit", home / "model" / "model.json", "--target", "y", code=2))
    assert "expected cpu" in said(run("fit", home / "train.csv", "--target", "price", "--device", "tpu", code=2))


def test_a_number_that_gets_its_decimals_late(tmp_path: Path):
    rows = [f"{k},{k}" for k in range(300)] + ["0.5,1"]
    (tmp_path / "late.csv").write_text("\n".join(["x,y", *rows]) + "\n")
    run("fit", tmp_path / "late.csv", "--target", "y", "--out", tmp_path / "model", "--quiet", *SMALL)
