"""Cells that are no numbers in columns of numbers: named, and never turned into categories without a word."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.doors.cli.commands import SMALL, houses, predictions, run, said

HINT = "(counted from 1, without the header)"


def table(rows: int, **cells: dict[int, str]) -> pl.DataFrame:
    """Numbers x and y; cells are replaced in rows counted from 1."""
    columns: dict[str, Any] = {"x": [f"{k / 8}" for k in range(rows)], "y": [f"{k % 7}" for k in range(rows)]}
    for name, new in cells.items():
        for row, text in new.items():
            columns[name][row - 1] = text
    return pl.DataFrame(columns)


def fit(data: pl.DataFrame | str, folder: Path, *options: str, code: int = 0) -> str:
    """What a fit says, or the columns of the model."""
    path = folder / "train.csv"
    path.write_text(data) if isinstance(data, str) else data.write_csv(path)
    result = run("fit", path, "--target", "y", "--out", folder / "model", "--force", "--quiet", *SMALL, *options, code=code)
    return said(result) if code else json.dumps(json.loads((folder / "model" / "model.json").read_text())["columns"])


def test_a_word_among_numbers_is_named(tmp_path: Path):
    text = fit(table(40, x={4: "abc"}), tmp_path, code=2)
    assert "train.csv: column 'x' holds numbers, except in 1 of 40 rows: 'abc' in row 4 " + HINT in text
    assert "leave a cell empty if its value is missing" in text
    assert "--categorical x" in text
    assert '"kind": "category"' in fit(table(40, x={4: "abc"}), tmp_path, "--categorical", "x")


def test_several_of_them(tmp_path: Path):
    text = fit(table(60, x={k: f"{k} kg" for k in range(10, 17)}), tmp_path, code=2)
    assert (
        "in 7 of 60 rows: '10 kg' in row 10, '11 kg' in row 11, '12 kg' in row 12, '13 kg' in row 13, '14 kg' in row 14, …"
        in text
    )


@pytest.mark.parametrize("option", ["--target", "--noise-column"])
def test_targets_and_noise(option: str, tmp_path: Path):
    """Their cells must be numbers, however many are not."""
    table(40, x=dict.fromkeys(range(2, 40), "much")).write_csv(tmp_path / "t.csv")
    names = ["--target", "x"] if option == "--target" else ["--target", "y", "--noise-column", "x"]
    text = said(run("fit", tmp_path / "t.csv", *names, "--out", tmp_path / "model", *SMALL, code=2))
    assert "t.csv: column 'x' must hold numbers, but 38 of 40 rows do not: 'much' in row 2, 'much' in row 3, " in text
    assert "--categorical" not in text


def test_predictions_and_evaluations(home: Path, tmp_path: Path):
    new = houses(30).cast(pl.String)
    spoiled = new.with_columns(size=pl.when(pl.int_range(30) == 6).then(pl.lit("big")).otherwise("size"))
    spoiled.write_csv(tmp_path / "new.csv")
    for command in ("predict", "evaluate"):
        text = said(run(command, home / "model", tmp_path / "new.csv", "--out", tmp_path / "p.csv", code=2))
        assert "new.csv: column 'size' must hold numbers, but 1 of 30 rows does not: 'big' in row 7 " + HINT in text
    spoiled = new.with_columns(price=pl.when(pl.int_range(30) == 6).then(pl.lit("dear")).otherwise("price"))
    spoiled.write_csv(tmp_path / "new.csv")
    text = said(run("evaluate", home / "model", tmp_path / "new.csv", "--out", tmp_path / "report", code=2))
    assert "'dear' in row 7" in text
    assert len(predictions(home / "model", spoiled, tmp_path)[0]) == 30  # which does not read the prices


@pytest.mark.parametrize("text", ["", "?", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", " ", " NA", "? "])
def test_marks_of_missing_values(text: str, tmp_path: Path):
    words = "column 'x' has a missing value (empty, NA, NaN, null, ? or the like) in 1 of 20 rows: row 4 " + HINT
    assert words in fit(table(20, x={4: text}), tmp_path, code=2)
    assert '"kind": "number"' in fit(table(20, x={4: text}), tmp_path, "--drop-missing")


@pytest.mark.parametrize("text", ["inf", "-inf", "Infinity", "INF", "1e999", " inf"])
def test_infinity_is_not_called_missing(text: str, tmp_path: Path):
    said = fit(table(20, x={4: text, 9: text}), tmp_path, code=2)
    assert "train.csv: column 'x' holds infinity in 2 of 20 rows: rows 4, 9 " + HINT in said
    assert "missing value" not in said
    assert '"kind": "number"' in fit(table(20, x={4: text}), tmp_path, "--drop-missing")


def test_spaces_and_signs_do_not_make_a_text(tmp_path: Path):
    """CSV with spaces after the commas, or with a plus sign: whole columns were categories."""
    plain = table(20)
    assert '"kind": "number"' in fit(plain, tmp_path)
    run("predict", tmp_path / "model", tmp_path / "train.csv", "--out", tmp_path / "plain.csv")
    spaced = plain.with_columns(x=pl.format(" +{} ", "x"), y=pl.format(" {}", "y"))
    assert '"kind": "number"' in fit(spaced, tmp_path)
    run("predict", tmp_path / "model", tmp_path / "train.csv", "--out", tmp_path / "spaced.csv")
    assert (tmp_path / "plain.csv").read_text() == (tmp_path / "spaced.csv").read_text()


RULE: dict[str, tuple[list[str], bool]] = {
    "one of three": (["1", "2", "x"], False),
    "one of four": (["1", "2", "3", "x"], True),
    "digits among few categories": (["1", "2", "x"] * 5, False),
    "sizes of clothes": (["36", "38", "40", "42", "S", "M", "L"] * 3, False),
    "10 texts": ([*map(str, range(30)), *"abcdefghij"], True),
    "11 texts": ([*map(str, range(30)), *"abcdefghijk"], False),
    "10 texts, as many as half of the numbers": ([*map(str, range(20)), *"abcdefghij"], False),
    "one text in half of the rows": (["1", "2", "3", "4", *["x"] * 4], False),
    "one text in fewer rows": (["1", "2", "3", "4", *["x"] * 3], True),
    "5 % of two numbers": ([*["1", "2"] * 19, "x", "y"], True),
    "6 % of two numbers": ([*["1", "2"] * 16, "x", "y"], False),
    "no number": (["a", "b"] * 10, False),
}


@pytest.mark.parametrize("what", RULE)
def test_when_a_column_should_have_been_one_of_numbers(what: str, tmp_path: Path):
    cells, refused = RULE[what]
    data = pl.DataFrame({"x": cells, "y": np.arange(len(cells)) % 5})
    answer = fit(data, tmp_path, code=2 if refused else 0)
    assert ("--categorical x" in answer) == refused
    assert ('"kind": "category"' in answer) != refused


def test_categories_that_look_like_numbers(tmp_path: Path):
    """Zip codes, say: with --categorical also where all of them are numbers, and with their zeros."""
    codes = pl.DataFrame({"x": ["01000", "02000", "9000"] * 5, "y": np.arange(15.0)})
    assert '"kind": "number"' in fit(codes, tmp_path)
    assert '"categories": ["01000", "02000", "9000"]' in fit(codes, tmp_path, "--categorical", "x")
    _, result = predictions(tmp_path / "model", codes[:2], tmp_path)
    assert "warning" not in result.stderr


def test_categories_in_parquet(tmp_path: Path):
    """Whole numbers can be categories. Texts that are numbers are one or the other: somebody has to say."""
    y = np.arange(12.0)

    def attempt(x: Any, *options: str, code: int = 0) -> str:
        pl.DataFrame({"x": x, "y": y}).write_parquet(tmp_path / "t.parquet")
        out = ["--out", tmp_path / "model", "--force", "--quiet"]
        result = run("fit", tmp_path / "t.parquet", "--target", "y", *out, *SMALL, *options, code=code)
        if not code:
            run("predict", tmp_path / "model", tmp_path / "t.parquet", "--out", tmp_path / "p.csv", "--force")
        return said(result)

    def kind() -> str:
        return json.loads((tmp_path / "model" / "model.json").read_text())["columns"][0]["kind"]

    attempt([1, 2, 3] * 4, "--categorical", "x")
    assert kind() == "category"
    texts = attempt(["1", "2", "3"] * 4, code=2)
    assert "t.parquet: column 'x' holds numbers as texts; convert it to numbers, or pass --categorical x" in texts
    attempt(["1", "2", "3"] * 4, "--categorical", "x")
    assert kind() == "category"
    attempt(pl.Series(["1", "2", "3"] * 4, dtype=pl.Categorical))  # which says what it is
    assert kind() == "category"
    assert "'x' has type Float64; --categorical takes texts and whole numbers" in attempt(
        [0.5, 1.5, 2.5] * 4, "--categorical", "x", code=2
    )


def test_options_that_contradict_each_other(tmp_path: Path):
    assert "no column 'z'" in fit(table(20), tmp_path, "--categorical", "z", code=2)
    assert "column 'y' is given twice" in fit(table(20), tmp_path, "--categorical", "y", code=2)
    assert "column 'x' is given twice" in fit(table(20), tmp_path, "--noise-column", "x", "--categorical", "x", code=2)


def test_several_files(tmp_path: Path):
    """The file is named, too; and files that differ are not put together without a word."""
    shards = tmp_path / "shards"
    shards.mkdir()

    def attempt(*options: str, code: int = 0) -> str:
        out = ["--out", tmp_path / "model", "--force", "--quiet"]
        return said(run("fit", shards, "--target", "y", *out, *SMALL, *options, code=code))

    table(20).write_csv(shards / "a.csv")
    table(20, x={4: "abc"}).write_csv(shards / "b.csv")
    assert "b.csv: column 'x' holds numbers, except in 1 of 20 rows: 'abc' in row 4" in attempt(code=2)
    table(20, x=dict.fromkeys(range(1, 21), "many")).write_csv(shards / "b.csv")
    mixed = attempt(code=2)
    assert f"column 'x' holds numbers in {shards / 'a.csv'} and texts in {shards / 'b.csv'}" in mixed
    assert "--categorical x" in mixed
    attempt("--categorical", "x")


def test_groups_with_spaces_are_the_same_groups(tmp_path: Path):
    """Whole numbers stay whole: 1, not 1.0."""
    data = pl.DataFrame({"x": [1, 2] * 8, "y": np.arange(16.0) % 5})
    fit(data.with_columns(x=pl.format(" {}", "x")), tmp_path, "--group-noise", "x")
    _, result = predictions(tmp_path / "model", data[:4], tmp_path)
    assert "warning" not in result.stderr


def test_a_column_without_values(tmp_path: Path):
    pl.DataFrame({"x": pl.Series([None] * 3, dtype=pl.String), "y": [1.0, 2.0, 3.0]}).write_parquet(tmp_path / "t.parquet")
    text = said(run("fit", tmp_path / "t.parquet", "--target", "y", "--out", tmp_path / "model", *SMALL, code=2))
    assert "column 'x' has a missing value (empty, NA, NaN, null, ? or the like) in 3 of 3 rows: rows 1, 2, 3" in text
