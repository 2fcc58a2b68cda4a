"""Read a CSV file uploaded by the browser into columns of numbers; the bytes are not trusted."""

import io
from dataclasses import dataclass

import numpy as np
import polars as pl
from polars.exceptions import PolarsError

from ntkgp.apps.tables.columns import TableError
from ntkgp.apps.tables.reading import MISSING_VALUES

MAX_BYTES = 2_000_000  # of an uploaded file
MAX_ROWS = 1000  # so that the posterior answers at once; larger tables are reduced to a random subset
MAX_COLUMNS = 50  # with numbers


@dataclass(frozen=True)
class Table:
    """Columns of finite numbers, all of the same length."""

    names: tuple[str, ...]
    columns: tuple[tuple[float, ...], ...]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.columns[0])

    def column(self, name: str) -> tuple[float, ...]:
        """The column of this name."""
        if name not in self.names:
            raise TableError(f"the table has no column {name!r}; its columns are {', '.join(self.names)}")
        return self.columns[self.names.index(name)]


def parse(content: bytes, name: str = "the file") -> tuple[Table, tuple[str, ...]]:
    r"""The numeric columns of a CSV file, and notes about what was left out; errors say what to do.

    Example:
        >>> table, notes = parse(b"size,town,price\n1,Lier,2\n3,Ghent,4\n,Ghent,5\n")
        >>> table.names, table.rows
        (('size', 'price'), 2)
        >>> notes
        ('columns without numbers left out: town', '1 of 3 rows left out: a value is missing or not finite')
    """
    if not content.strip():
        raise TableError(f"{name} is empty; expected a CSV file with a header and rows of numbers")
    if len(content) > MAX_BYTES:
        size, limit = len(content) / 1e6, MAX_BYTES / 1e6
        raise TableError(f"{name} has {size:.1f} MB; the page takes at most {limit:.0f} MB: use `ntkgp fit` instead")
    if b"\0" in content[:4096]:
        raise TableError(f"{name} is not a text file; expected CSV: values separated by commas")
    try:
        frame = pl.read_csv(io.BytesIO(content), infer_schema_length=None, null_values=MISSING_VALUES)
    except (PolarsError, UnicodeDecodeError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise TableError(f"{name} cannot be read as CSV: {reason}") from error
    numeric = [
        column for column in frame.columns if frame.schema[column].is_numeric() and frame[column].null_count() < len(frame)
    ]
    if len(numeric) < 2:
        raise TableError(
            f"{name} has {len(numeric)} column(s) of numbers; at least 2 are needed: a target and an input. The first line "
            f"must hold the column names, with values separated by commas (found: {', '.join(frame.columns[:10])})"
        )
    if len(numeric) > MAX_COLUMNS:
        raise TableError(f"{name} has {len(numeric)} columns of numbers; the page takes at most {MAX_COLUMNS}: remove some")
    notes = []
    others = [column for column in frame.columns if column not in numeric]
    if others:
        notes.append("columns without numbers left out: " + ", ".join(others[:10]))
    values = frame.select(numeric).cast(pl.Float64).to_numpy()
    whole = np.asarray(np.isfinite(values).all(axis=1))
    if whole.sum() < 2:
        raise TableError(f"{name} has {whole.sum()} row(s) with a finite number in every column; at least 2 are needed")
    if not whole.all():
        notes.append(f"{(~whole).sum()} of {len(whole)} rows left out: a value is missing or not finite")
    values = values[whole]
    if len(values) > MAX_ROWS:
        notes.append(f"{MAX_ROWS} of {len(values)} rows used, chosen at random")
        values = values[np.sort(np.random.default_rng(0).permutation(len(values))[:MAX_ROWS])]
    return Table(tuple(numeric), tuple(tuple(column.tolist()) for column in values.T)), tuple(notes)
