"""Numbers in columns of texts: a wrong cell must not turn a column of numbers into categories without a word."""

from collections.abc import Iterable
from pathlib import Path

import polars as pl

from ntkgp.apps.tables.columns import MAX_LISTED, TableError

MISSING_VALUES = ["", "?", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null"]  # spellings of a missing value
COUNTED = "(counted from 1, without the header)"  # which rows a message means

# A column probably holds numbers if the other texts are in at most FEW_CELLS of its cells; or if there are at most FEW_TEXTS
# different ones, in fewer than half of its cells, and more than twice as many different numbers (unlike in 36, 38, S, M).
FEW_CELLS, FEW_TEXTS = 0.05, 10


def with_numbers(table: pl.DataFrame, path: Path, numbers: Iterable[str], features: Iterable[str]) -> pl.DataFrame:
    """Read texts as numbers, also with spaces around them and plus signs; raise a TableError that names cells that are none.

    Args:
        table: some of its columns may hold texts.
        path: the file of the table, for messages.
        numbers: columns that can hold nothing but numbers.
        features: columns that may hold categories; they stay texts unless they probably hold numbers.

    Example:
        >>> table = pl.DataFrame({"size": [" 1", "+2"], "town": ["Ghent", "Lier"]})
        >>> dict(with_numbers(table, Path("table.csv"), [], table.columns).schema)
        {'size': Int64, 'town': String}
    """
    numbers = [*numbers]
    for name in dict.fromkeys([*numbers, *features]):
        if table.schema[name] != pl.String:
            continue
        texts = table[name].str.strip_chars()
        texts = texts.set(texts.is_in(MISSING_VALUES), None)
        values, whole = texts.cast(pl.Float64, strict=False), texts.cast(pl.Int64, strict=False)
        wrong = texts.is_not_null() & values.is_null()
        if name in numbers:
            if wrong.any():
                do = "does" if wrong.sum() == 1 else "do"
                raise TableError(
                    f"{path}: column {name!r} must hold numbers, but {_listed(table[name], wrong, f'{do} not')}; correct the "
                    "cells, or leave a cell empty if its value is missing"
                )
        elif not _probably_numbers(texts, values, wrong):
            continue
        elif wrong.any():
            raise TableError(
                f"{path}: column {name!r} holds numbers, except in {_listed(table[name], wrong)}; correct the cells (leave a "
                f"cell empty if its value is missing), or pass --categorical {name} if all values are names of categories"
            )
        elif path.suffix.lower() not in (".csv", ".tsv"):  # where the type could have said what they are
            raise TableError(
                f"{path}: column {name!r} holds numbers as texts; convert it to numbers, or pass --categorical {name} if they "
                "are names of categories"
            )
        table = table.with_columns(values if whole.null_count() > values.null_count() else whole)
    return table


def _probably_numbers(texts: pl.Series, values: pl.Series, wrong: pl.Series) -> bool:
    """Whether a column of texts should have been a column of numbers."""
    count, cells = int(wrong.sum()), texts.len() - texts.null_count()
    other, different = texts.filter(wrong).n_unique(), values.drop_nulls().n_unique()
    few = 2 * count < cells and other <= FEW_TEXTS and 2 * other < different
    return different > 0 and (count <= FEW_CELLS * cells or few)


def _listed(column: pl.Series, wrong: pl.Series, verb: str = "") -> str:
    """The wrong cells for a message: how many, and the first of them."""
    rows = wrong.arg_true()
    cells = ", ".join(f"{column[row]!r} in row {row + 1}" for row in rows[:MAX_LISTED])
    dots = ", …" if len(rows) > MAX_LISTED else ""
    return f"{len(rows)} of {len(column)} rows{verb and ' '}{verb}: {cells}{dots} {COUNTED}"
