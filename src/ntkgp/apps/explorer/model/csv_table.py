"""Read a CSV file uploaded by the browser into columns of numbers; the bytes are not trusted."""

import csv
import io
from dataclasses import dataclass

import numpy as np
import polars as pl

from ntkgp.apps.tables.columns import TableError
from ntkgp.apps.tables.reading import MISSING_VALUES, READ_ERRORS

MAX_BYTES = 2_000_000  # of an uploaded file
MAX_ROWS = 1000  # so that the posterior answers at once; larger tables are reduced to a random subset
MAX_COLUMNS = 50  # with numbers
MAX_NUMBER = 1e150  # the squares of larger numbers, or their sum, overflow


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
    if b"\0" in content[:4096]:
        raise TableError(f"{name} is not a text file; expected CSV: values separated by commas")
    header, frame = _read(content, name)
    if not len(frame):
        raise TableError(f"{name} has a header but 0 rows; at least 2 are needed")
    notes = []
    if not any(header):
        raise TableError(f"{name} has no column with a name; the first line must hold the column names, separated by commas")
    if nameless := header.count(""):
        notes.append(f"{nameless} {'columns' if nameless > 1 else 'column'} without a name left out")
        frame = frame.select(str(k) for k, word in enumerate(header) if word)
        header = [word for word in header if word]
    if twice := [word for word in header if header.count(word) > 1]:
        raise TableError(f"{name} has two columns {twice[0]!r}; rename one of them")
    frame.columns = header
    if all(map(_is_number, header)):
        notes.append("the first line was read as column names: " + ", ".join(header[:10]))
    numeric = [column for column in header if frame.schema[column].is_numeric() and frame[column].null_count() < len(frame)]
    if len(numeric) < 2:
        raise TableError(
            f"{name} has {len(numeric)} column(s) of numbers; at least 2 are needed: a target and an input. The first line "
            f"must hold the column names, with values separated by commas (found: {', '.join(header[:10])})"
        )
    if len(numeric) > MAX_COLUMNS:
        raise TableError(f"{name} has {len(numeric)} columns of numbers; the page takes at most {MAX_COLUMNS}: remove some")
    if others := [column for column in header if column not in numeric]:
        notes.append("columns without numbers left out: " + ", ".join(others[:10]))
    values = frame.select(numeric).cast(pl.Float64).to_numpy()
    whole = np.asarray(np.isfinite(values).all(axis=1))
    if whole.sum() < 2:
        raise TableError(f"{name} has {whole.sum()} row(s) with a finite number in every column; at least 2 are needed")
    if not whole.all():
        notes.append(f"{(~whole).sum()} of {len(whole)} rows left out: a value is missing or not finite")
    values = values[whole]
    row, place = np.unravel_index(np.abs(values).argmax(), values.shape)
    if abs(values[row, place]) > MAX_NUMBER:
        raise TableError(
            f"{name} has {values[row, place]:g} in column {numeric[place]!r}; the page takes numbers up to {MAX_NUMBER:g}: "
            "rescale the column"
        )
    if len(values) > MAX_ROWS:
        notes.append(f"{MAX_ROWS} of {len(values)} rows used, chosen at random")
        values = values[np.sort(np.random.default_rng(0).permutation(len(values))[:MAX_ROWS])]
    return Table(tuple(numeric), tuple(tuple(column.tolist()) for column in values.T)), tuple(notes)


def _read(content: bytes, name: str) -> tuple[list[str], pl.DataFrame]:
    """The column names as the file has them, "" for none, and the columns, called "0", "1" and so on."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = f"the byte {content[error.start]:#x} in line {content[: error.start].count(10) + 1}"
        raise TableError(f"{name} is not UTF-8 text: {place} is not valid; save the file as UTF-8") from error
    if not text.strip():
        raise TableError(f"{name} is empty; expected a CSV file with a header and rows of numbers")
    lines = io.StringIO(text)
    try:
        header = next(row for row in csv.reader(lines, strict=True) if row)
        rows = ",".join(map(str, range(len(header)))) + "\n" + lines.read()
        frame = pl.read_csv(io.StringIO(rows), infer_schema_length=None, null_values=MISSING_VALUES)
    except (csv.Error, *READ_ERRORS) as error:
        raise TableError(f"{name} cannot be read as CSV: {str(error).strip().splitlines()[0]}") from error
    return [word if word.strip() else "" for word in header], frame


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
