"""A table split over several processes: each reads some of the files or rows, and all agree on the columns."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import torch.distributed as dist

from ntkgp.apps.tables.columns import CATEGORY, MAX_CATEGORIES, Column, TableError
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


def rows(table: Path, names: Sequence[str], drop: bool, ranks: Group | None) -> pl.DataFrame:
    """The complete rows of a table that this process reads: its share of the files, or of the rows of a single file.

    A rank may have no rows. The rows of rank 0, 1, … one after the other are the rows of the files in order.
    """
    files = files_of(table)
    mine = files if ranks is None or len(files) == 1 else files[_part(len(files), ranks)]
    parts = [collect(read(file), names, file) for file in mine]
    parts = [part.filter(complete(part, file, drop)) for part, file in zip(parts, mine, strict=True) if len(part)]
    if not parts:  # no rows: an empty table with the right columns and types
        parts = [collect(read(files[0]), names, files[0]).head(0)]
    data = pl.concat(parts, how="vertical_relaxed")
    if ranks is not None and len(files) == 1:
        data = data[_part(len(data), ranks)]
    if ranks is None and not len(data):
        raise TableError(f"{table} has no rows")
    return data


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
                "convert it to one type in all files"
            )
        categories = tuple(sorted({text for each in everyone for text in each[k][1]}))
        if column.kind == CATEGORY and len(categories) > MAX_CATEGORIES:
            raise TableError(
                f"column {column.name!r} holds {len(categories)} different texts over all ranks; a column can have at most "
                f"{MAX_CATEGORIES} categories: leave it out with --ignore {column.name}, or convert it to numbers"
            )
        same.append(Column(column.name, column.kind, categories))
    return same
