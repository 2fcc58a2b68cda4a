"""A table split over several processes: each reads some of the files or rows, and all agree on the columns."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import torch.distributed as dist

from ntkgp.apps.tables.cells import with_numbers
from ntkgp.apps.tables.columns import CATEGORY, MAX_CATEGORIES, Column, TableError, kind_of, plural
from ntkgp.apps.tables.reading import collect, complete, files_of, read
from ntkgp.distributed.group import Group


@contextmanager
def joined(device: str) -> Iterator[tuple[Group | None, str]]:
    """The processes started by torchrun (None without torchrun), and the device of this one: its own GPU for ``cuda``."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield None, device
        return
    ours = not dist.is_initialized()
    if ours:
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    group = Group()
    try:
        with group.together():
            yield group, f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if device == "cuda" else device
    finally:
        if ours:
            dist.destroy_process_group()


def rows(
    table: Path,
    names: Sequence[str],
    drop: bool,
    ranks: Group | None,
    *,
    numbers: Sequence[str],
    features: Sequence[str],
    texts: Sequence[str],
) -> pl.DataFrame:
    """The complete rows of a table that this process reads: its share of the files, or of the rows of a single file.

    A rank may have no rows. The rows of rank 0, 1, … one after the other are the rows of the files in order.

    Args:
        table: a file, a folder or a pattern.
        names: the columns to read.
        drop: leave out rows with missing values, rather than raise an error.
        ranks: the processes that share the work.
        numbers: columns that can hold nothing but numbers.
        features: columns of numbers or of categories.
        texts: columns of categories, even if they look like numbers.
    """
    files = files_of(table)
    mine = files if ranks is None or len(files) == 1 else files[_part(len(files), ranks)]

    def content(file: Path) -> pl.DataFrame:
        found = collect(read(file, texts), names, file, texts)
        return with_numbers(found, file, numbers, [name for name in features if name not in texts])

    parts = {file: part for file in mine if len(part := content(file))}
    parts = {file: part.filter(complete(part, file, drop)) for file, part in parts.items()}
    _check_alike(parts)
    # If there are no rows: an empty table with the right columns and types.
    data = pl.concat(parts.values(), how="vertical_relaxed") if parts else content(files[0]).head(0)
    if ranks is not None and len(files) == 1:
        data = data[_part(len(data), ranks)]
    if ranks is None and not len(data):
        raise TableError(f"{table} has no rows")
    return data


def _check_alike(parts: Mapping[Path, pl.DataFrame]) -> None:
    """Check that each column holds values of one kind in all files; polars would turn numbers into texts."""
    first: dict[str, tuple[str | None, Path]] = {}  # the kind of each column, and the first file that has it
    for file, part in parts.items():
        for series in part:
            kind, (before, where) = kind_of(series), first.setdefault(series.name, (kind_of(series), file))
            if kind != before:
                raise TableError(
                    f"column {series.name!r} holds {plural(before)} in {where} and {plural(kind)} in {file}; convert it to one "
                    f"type in all files, or pass --categorical {series.name} if all values are names of categories"
                )


def _part(count: int, ranks: Group) -> slice:
    return slice(count * ranks.rank // ranks.size, count * (ranks.rank + 1) // ranks.size)


def same_columns(columns: list[Column], ranks: Group | None) -> list[Column]:
    """The columns with the categories of all ranks together."""
    if ranks is None:
        return columns
    everyone = ranks.facts([[column.kind, list(column.categories)] for column in columns])
    same = []
    for k, column in enumerate(columns):
        kinds = {each[k][0] for each in everyone}
        if len(kinds) > 1:
            raise TableError(
                f"column {column.name!r} holds different kinds of values in different files ({', '.join(sorted(kinds))}); "
                f"convert it to one type in all files, or pass --categorical {column.name} if all values are names of "
                "categories"
            )
        categories = tuple(sorted({text for each in everyone for text in each[k][1]}))
        if column.kind == CATEGORY and len(categories) > MAX_CATEGORIES:
            raise TableError(
                f"column {column.name!r} holds {len(categories)} different texts over all ranks; a column can have at most "
                f"{MAX_CATEGORIES} categories: leave it out with --ignore {column.name}, or convert it to numbers"
            )
        same.append(Column(column.name, column.kind, categories))
    return same
