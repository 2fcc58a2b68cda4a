"""Arguments, table rows and messages that the commands for tables share."""

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import torch
import typer

from ntkgp.apps.tables.cells import with_numbers
from ntkgp.apps.tables.columns import CATEGORY, MAX_LISTED, NUMBER, TableError, check_kinds
from ntkgp.apps.tables.named import NamedModel
from ntkgp.apps.tables.reading import collect, complete, read


def _device(name: str) -> str:
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or not (number.isdecimal() or name == kind) or (kind == "cpu" and number):
        raise typer.BadParameter(f"expected cpu, cuda or cuda:1 (the second GPU), got {name!r}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "cuda" and int(number or 0) >= count:
        found = f"torch {torch.__version__} finds {count or 'no'} CUDA device{'s' if count > 1 else ''} here"
        advice = "use cpu, or another GPU" if count else "use cpu, or install torch with CUDA on a machine with a GPU"
        raise typer.BadParameter(f"{found}, so {name!r} cannot be used; {advice}")
    return name


TableFiles = Annotated[
    Path,
    typer.Argument(
        metavar="TABLE", help="A .csv, .tsv or .parquet file, a folder of such files, or a pattern such as 'part-*.parquet'."
    ),
]
TableFile = Annotated[Path, typer.Argument(metavar="TABLE", help="A .csv, .tsv or .parquet file with one row per observation.")]
ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="A folder written by ntkgp fit.")]
Drop = Annotated[bool, typer.Option("--drop-missing", help="Leave out rows with a missing or infinite value.")]
Device = Annotated[str, typer.Option(help="Device for the computation: cpu, cuda or cuda:1.", callback=_device)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else, to standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print no progress bars and no summary.")]


def check_level(level: float) -> None:
    """Check the probability of an interval."""
    if not 0 < level < 1:
        raise TableError(f"level must be between 0 and 1, got {level!r}; write 95 % as 0.95")


def rows_of(named: NamedModel, path: Path, also: Sequence[str], drop: bool) -> tuple[pl.DataFrame, pl.Series]:
    """The complete rows of a file, and for every row of the file whether it is complete; `also` names extra columns."""
    columns, group = named.columns, named.group
    texts = [column.name for column in columns.features if column.kind == CATEGORY]
    source = read(path, texts)
    names = source.collect_schema().names()
    known = {*named.needed, *columns.targets, *columns.ignored, *columns.noise}
    unknown = [name for name in names if name not in known]
    if unknown:
        warnings.warn(
            f"{path} has columns that the training table did not have; they are ignored: {', '.join(unknown)}", stacklevel=2
        )
    wanted = dict.fromkeys([*named.needed, *also, *(name for name in columns.noise if name in names)])
    data = collect(source, list(wanted), path, texts)
    numeric = [column.name for column in columns.features if column.kind == NUMBER]
    data = with_numbers(data, path, [name for name in wanted if name in {*numeric, *also, *columns.noise}], [])
    check_kinds(data, columns.features, path)
    whole = complete(data, path, drop)
    data = data.filter(whole)
    for column in [*columns.features, *([group] if group else [])]:
        unseen = column.unseen(data[column.name])
        if unseen:
            names = ", ".join(unseen[:MAX_LISTED]) + (", …" if len(unseen) > MAX_LISTED else "")
            effect = "their noise is the mean over the training rows" if column == group else "all their features are 0"
            warnings.warn(
                f"column {column.name!r} of {path} has categories that the training table did not have: {names}; {effect}",
                stacklevel=2,
            )
    return data, whole


def print_json(record: dict[str, Any]) -> None:
    """Print one JSON object to standard output."""
    typer.echo(json.dumps(record, indent=1))


@contextmanager
def explained() -> Iterator[list[str]]:
    """Print and collect warnings; print errors and exit, with 2 for bad data or options and 1 for disk or memory errors."""
    warned: list[str] = []

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in warned:
            warned.append(str(message))
            typer.echo(f"warning: {message}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        try:
            yield warned
        except ValueError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from error
        except (OSError, RuntimeError, MemoryError) as error:
            typer.echo(f"error: {error or type(error).__name__}", err=True)
            raise typer.Exit(1) from error
