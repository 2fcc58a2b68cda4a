"""Tables in files: read by polars, checked against the columns a model knows, encoded as numbers."""

import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from polars.exceptions import PanicException, PolarsError

from ntkgp.apps.tables.columns import TableError, listed

NULLS = ["", "NA", "NaN", "nan", "null"]  # what stands for a missing value in CSV
# A damaged Parquet file may make polars panic, which is no Exception in Python, and would pass every handler.
UNREADABLE = (PolarsError, OSError, OverflowError, UnicodeError, PanicException)
# Where its lengths are damaged, polars asks for exabytes, and Rust aborts the process that does not get them.
TRIAL = "import sys, polars; polars.scan_parquet(sys.argv[1], glob=False, hive_partitioning=False).collect()"


def read(path: Path, texts: Sequence[str] = ()) -> pl.LazyFrame:
    r"""A CSV or Parquet file, not read yet. In CSV the columns named in `texts` are not taken for numbers.

    The types of CSV columns are inferred from all rows, so that a late decimal point is no surprise.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "table.csv"
        >>> _ = path.write_text("size,colour\n1,red\n2.5,blue\n")
        >>> dict(read(path).collect_schema())
        {'size': Float64, 'colour': String}
    """
    if not path.is_file():
        raise TableError(f"there is no file {path}")
    kind = path.suffix.lower()
    try:
        if kind in (".parquet", ".pq"):
            _check_decodes(path)
            frame = pl.scan_parquet(path, glob=False, hive_partitioning=False)
            frame.collect_schema()
            return frame
        if kind in (".csv", ".tsv"):
            options: dict[str, Any] = {"separator": "\t" if kind == ".tsv" else ",", "infer_schema_length": None}
            options |= {"null_values": NULLS, "glob": False}
            names = pl.scan_csv(path, **options).collect_schema().names()
            if renamed := [name for name in names if re.sub(r"_duplicated_\d+$", "", name) in set(names) - {name}]:
                raise TableError(f"{path} has a column {renamed[0].rpartition('_duplicated_')[0]!r} twice; rename one of them")
            overrides = {name: pl.String for name in texts if name in names}
            return pl.scan_csv(path, **options, schema_overrides=overrides)
    except UNREADABLE as error:
        raise TableError(f"{path} cannot be read as {kind[1:]}: {error}") from error
    raise TableError(f"{path} must end in .csv, .tsv or .parquet, got {kind or 'no ending'}")


def _check_decodes(path: Path) -> None:
    """Decode a Parquet file in a process of its own first: damage can end the process that meets it, past every handler.

    Cost: reading it once more, and the start of an interpreter.
    """
    done = subprocess.run([sys.executable, "-c", TRIAL, str(path)], capture_output=True, check=False)
    if done.returncode < 0:
        raise TableError(f"{path} is damaged: a process that read it was ended by {signal.Signals(-done.returncode).name}")


def files_of(path: Path) -> list[Path]:
    """The files of a table that is one file, a folder of them, or a pattern such as ``part-*.parquet``, in order of names.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("b.csv", "a.csv", "notes.txt"): _ = (folder / name).write_text("")
        >>> [file.name for file in files_of(folder)], [file.name for file in files_of(folder / "b*.csv")]
        (['a.csv', 'b.csv'], ['b.csv'])
    """
    if "*" in path.name and not path.exists():
        found = sorted(path.parent.glob(path.name))
    elif path.is_dir():
        found = sorted(file for file in path.iterdir() if file.suffix.lower() in (".csv", ".tsv", ".parquet", ".pq"))
    else:
        return [path]
    if not found:
        raise TableError(f"{path} has no .csv, .tsv or .parquet file")
    return found


def write(frame: pl.DataFrame, path: Path) -> None:
    """A table as CSV or Parquet, by the ending of the path."""
    kind = path.suffix.lower()
    if kind not in (".csv", ".parquet", ".pq"):
        raise TableError(f"{path} must end in .csv or .parquet, got {kind or 'no ending'}")
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.write_csv(path) if kind == ".csv" else frame.write_parquet(path)


def collect(frame: pl.LazyFrame, names: Sequence[str], path: Path) -> pl.DataFrame:
    """These columns of a table in memory: columns of numbers, no Python objects."""
    missing = [name for name in names if name not in frame.collect_schema().names()]
    if missing:
        raise TableError(
            f"{path} has no column {listed(missing)}; its columns are {listed(frame.collect_schema().names(), 20)}"
        )
    try:
        table = frame.select(names).collect()
    except UNREADABLE as error:
        raise TableError(f"{path} cannot be read: {error}") from error
    return table


def complete(table: pl.DataFrame, path: Path, drop: bool) -> pl.Series:
    """Which rows have a finite value in every column; an error if some have not and they are not to be dropped."""
    if not len(table):
        raise TableError(f"{path} has no rows")
    whole = pl.Series("whole", np.ones(len(table), dtype=bool))
    for series in table:
        there = series.is_not_null()
        if series.dtype.is_float():
            there = there & series.is_finite().fill_null(False)
        if not drop and not there.all():
            rows = (~there).arg_true()
            raise TableError(
                f"{path}: column {series.name!r} has no value in {len(rows)} of {len(table)} rows, first in rows "
                f"{listed((rows + 1).to_list())} (counted from 1, without the header); fill them in, or pass --drop-missing "
                "to do without these rows"
            )
        whole = whole & there
    if not whole.any():
        raise TableError(f"{path} has no row without a missing value")
    return whole
