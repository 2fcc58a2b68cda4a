"""A table that came through the browser: columns of numbers, read from untrusted bytes."""

import io
from dataclasses import dataclass

import numpy as np
import polars as pl
from polars.exceptions import PolarsError

from ntkgp.apps.tables.columns import TableError
from ntkgp.apps.tables.reading import NULLS

MOST_BYTES = 2_000_000
MOST_ROWS = 1000  # used for a posterior that answers at once; a random choice of them where there are more
MOST_COLUMNS = 50


@dataclass(frozen=True)
class Table:
    """Columns of finite numbers, all of one length."""

    names: tuple[str, ...]
    columns: tuple[tuple[float, ...], ...]

    @property
    def rows(self) -> int:
        """Their number."""
        return len(self.columns[0])

    def column(self, name: str) -> tuple[float, ...]:
        """One of the columns."""
        if name not in self.names:
            raise TableError(f"the table has no column {name!r}; its columns are {', '.join(self.names)}")
        return self.columns[self.names.index(name)]


def parse(content: bytes, name: str = "the file") -> tuple[Table, tuple[str, ...]]:
    r"""The columns of numbers of a CSV file, and what was left out of it; an error says what to do.

    Example:
        >>> table, notes = parse(b"size,town,price\n1,Lier,2\n3,Ghent,4\n,Ghent,5\n")
        >>> table.names, table.rows
        (('size', 'price'), 2)
        >>> notes
        ('columns without numbers left out: town', '1 of 3 rows left out: a value is missing or not finite')
    """
    if not content.strip():
        raise TableError(f"{name} is empty; expected a CSV file with a header and rows of numbers")
    if len(content) > MOST_BYTES:
        raise TableError(f"{name} has {len(content) / 1e6:.1f} MB, at most {MOST_BYTES / 1e6:.0f} MB fit here; use `ntkgp fit`")
    if b"\0" in content[:4096]:
        raise TableError(f"{name} is not a text file; expected CSV, values separated by commas")
    try:
        frame = pl.read_csv(io.BytesIO(content), infer_schema_length=None, null_values=NULLS)
    except (PolarsError, UnicodeDecodeError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise TableError(f"{name} cannot be read as CSV: {reason}") from error
    numeric = [
        column for column in frame.columns if frame.schema[column].is_numeric() and frame[column].null_count() < len(frame)
    ]
    if len(numeric) < 2:
        raise TableError(
            f"{name} has {len(numeric)} column(s) of numbers, at least 2 are needed: a target and an input; the first line "
            f"must hold the names of the columns, values are separated by commas (found: {', '.join(frame.columns[:10])})"
        )
    if len(numeric) > MOST_COLUMNS:
        raise TableError(f"{name} has {len(numeric)} columns of numbers, at most {MOST_COLUMNS} fit here; leave some out")
    notes = []
    others = [column for column in frame.columns if column not in numeric]
    if others:
        notes.append("columns without numbers left out: " + ", ".join(others[:10]))
    values = frame.select(numeric).cast(pl.Float64).to_numpy()
    whole = np.asarray(np.isfinite(values).all(axis=1))
    if whole.sum() < 2:
        raise TableError(f"{name} has {whole.sum()} row(s) with a finite number in every column, at least 2 are needed")
    if not whole.all():
        notes.append(f"{(~whole).sum()} of {len(whole)} rows left out: a value is missing or not finite")
    values = values[whole]
    if len(values) > MOST_ROWS:
        notes.append(f"{MOST_ROWS} of {len(values)} rows used, chosen at random")
        values = values[np.sort(np.random.default_rng(0).permutation(len(values))[:MOST_ROWS])]
    return Table(tuple(numeric), tuple(tuple(column.tolist()) for column in values.T)), tuple(notes)
