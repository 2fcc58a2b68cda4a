"""Read tables from CSV and Parquet files, check them, and write them."""

import os
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

from ntkgp.apps.tables.cells import COUNTED, MISSING_VALUES
from ntkgp.apps.tables.columns import TableError, listed
from ntkgp.storage.replace import replacing

# A damaged Parquet file can make polars panic. PanicException is not a subclass of Exception, so it is listed here.
READ_ERRORS = (PolarsError, OSError, OverflowError, UnicodeError, PanicException)
# With damaged lengths in the file, polars tries to allocate exabytes, and Rust aborts the process.
DECODE_SCRIPT = "import sys, polars; polars.scan_parquet(sys.argv[1], glob=False, hive_partitioning=False).collect()"


def read(path: Path, texts: Sequence[str] = ()) -> pl.LazyFrame:
    r"""Open a CSV or Parquet file as a lazy table. In CSV the columns named in `texts` are read as texts, exactly as written.

    The types of CSV columns are inferred from all rows, so a decimal point in a late row is found.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "table.csv"
        >>> _ = path.write_text("size,colour\n1,red\n2.5,blue\n")
        >>> dict(read(path).collect_schema())
        {'size': Float64, 'colour': String}
    """
    check_unicode(path)
    if not path.is_file():
        raise TableError(f"there is no file {path}")
    source = os.path.join(os.curdir, path)  # polars would take "~" for the home folder
    kind = path.suffix.lower()
    try:
        if kind in (".parquet", ".pq"):
            _check_decodes(path, source)
            frame = pl.scan_parquet(source, glob=False, hive_partitioning=False)
            frame.collect_schema()
            return frame
        if kind in (".csv", ".tsv"):
            options: dict[str, Any] = {"separator": "\t" if kind == ".tsv" else ",", "infer_schema_length": None}
            options |= {"null_values": MISSING_VALUES, "glob": False}
            names = pl.scan_csv(source, **options).collect_schema().names()
            if renamed := [name for name in names if re.sub(r"_duplicated_\d+$", "", name) in set(names) - {name}]:
                raise TableError(f"{path} has two columns {renamed[0].rpartition('_duplicated_')[0]!r}; rename one of them")
            overrides = {name: pl.String for name in texts if name in names}
            return pl.scan_csv(source, **options, schema_overrides=overrides)
    except READ_ERRORS as error:
        raise TableError(f"{path} cannot be read as {kind[1:]}: {error}") from error
    raise TableError(f"{path} must end in .csv, .tsv or .parquet, got {kind or 'no extension'}")


def _check_decodes(path: Path, source: str) -> None:
    """Decode a Parquet file in a separate process first, because a damaged file can abort the process that reads it.

    Cost: one more read of the file, and the start of a Python interpreter.
    """
    done = subprocess.run([sys.executable, "-c", DECODE_SCRIPT, source], capture_output=True, check=False)
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise TableError(f"{path} is damaged: the process that read it was ended by {name}; use another copy")


def files_of(path: Path) -> list[Path]:
    """The files of a table, sorted by name. `path` is a file, a folder, or a pattern such as ``part-*.parquet``.

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
        raise TableError(f"there is no .csv, .tsv or .parquet file in {path}")
    return found


def check_unicode(path: Path) -> None:
    """Check that a path is Unicode, as polars and messages require."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise TableError(
            f"the name {os.fsencode(path)!r} is not UTF-8; rename the file or its folder, or use another"
        ) from error


def check_writable_kind(path: Path) -> None:
    """Check that :func:`write` can write files with this extension."""
    if path.suffix.lower() not in (".csv", ".parquet", ".pq"):
        raise TableError(f"{path} must end in .csv or .parquet, got {path.suffix or 'no extension'}")


def write(frame: pl.DataFrame, path: Path, replace: bool = True) -> None:
    """Write a table as CSV or Parquet, depending on the file extension; completely or not at all.

    If the file exists and `replace` is false, raise FileExistsError.
    """
    check_writable_kind(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, replace) as temporary:
        try:
            with open(temporary, "wb") as file:  # polars cannot open every path
                frame.write_csv(file) if path.suffix.lower() == ".csv" else frame.write_parquet(file)
        except PolarsError as error:
            raise OSError(str(error)) from error


def collect(frame: pl.LazyFrame, names: Sequence[str], path: Path, texts: Sequence[str] = ()) -> pl.DataFrame:
    """Load these columns of a table into memory, without Python objects. Whole numbers in the columns `texts` become texts."""
    missing = [name for name in names if name not in frame.collect_schema().names()]
    if missing:
        raise TableError(
            f"{path} has no column {listed(missing)}; its columns are {listed(frame.collect_schema().names(), 20)}"
        )
    try:
        table = frame.select(names).collect()
    except READ_ERRORS as error:
        raise TableError(f"{path} cannot be read: {error}") from error
    return table.with_columns(table[name].cast(pl.String) for name in texts if table.schema[name].is_integer())


def complete(table: pl.DataFrame, path: Path, drop: bool) -> pl.Series:
    """Which rows have a finite value in every column. Raises an error if some rows do not, unless `drop` is set."""
    if not len(table):
        raise TableError(f"{path} has no rows")
    whole = pl.Series("whole", np.ones(len(table), dtype=bool))
    for series in table:
        missing, infinite = series.is_null(), series.is_null() & False
        if series.dtype.is_float():
            missing, infinite = missing | series.is_nan().fill_null(False), series.is_infinite().fill_null(False)
        if not drop:
            _refuse(missing, path, f"{series.name!r} has a missing value (empty, NA, NaN, null, ? or the like)")
            _refuse(infinite, path, f"{series.name!r} holds infinity")
        whole = whole & ~(missing | infinite)
    if not whole.any():
        raise TableError(f"every row of {path} has a missing or infinite value; fill in the values")
    return whole


def _refuse(bad: pl.Series, path: Path, what: str) -> None:
    """Raise a TableError that names the bad rows, if there are any."""
    if bad.any():
        rows = (bad.arg_true() + 1).to_list()
        raise TableError(
            f"{path}: column {what} in {len(rows)} of {len(bad)} rows: row{'s' if len(rows) > 1 else ''} {listed(rows)} "
            f"{COUNTED}; correct the values, or pass --drop-missing to leave out these rows"
        )
