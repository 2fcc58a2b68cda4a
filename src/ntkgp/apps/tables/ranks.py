"""A table over several processes: who reads which files, and columns that are the same for all."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import torch.distributed as dist

from ntkgp.apps.tables.columns import CATEGORIES, CATEGORY, Column, TableError
from ntkgp.apps.tables.reading import collect, complete, files_of, read
from ntkgp.distributed.group import Group


@contextmanager
def joined(device: str) -> Iterator[tuple[Group | None, str]]:
    """The processes that torchrun has started, each with a GPU of its own where asked for; None where it is one alone."""
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
    """The complete rows of a table. Of several ranks each takes its part of the files, or of a single one its part of the rows.

    A rank may have none. One behind the other the ranks have the rows in the order of the files.
    """
    files = files_of(table)
    mine = files if ranks is None or len(files) == 1 else files[_part(len(files), ranks)]
    parts = [collect(read(file), names, file) for file in mine]
    parts = [part.filter(complete(part, file, drop)) for part, file in zip(parts, mine, strict=True) if len(part)]
    if not parts:  # as many columns of the same types
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
    """Columns with the categories of all ranks."""
    if ranks is None:
        return columns
    everyone = ranks.facts([[column.kind, list(column.categories)] for column in columns])
    same = []
    for k, column in enumerate(columns):
        kinds = {each[k][0] for each in everyone}
        if len(kinds) > 1:
            raise TableError(
                f"column {column.name!r} holds {' on one rank, on another '.join(sorted(kinds))}s; make its type one"
            )
        categories = tuple(sorted({text for each in everyone for text in each[k][1]}))
        if column.kind == CATEGORY and len(categories) > CATEGORIES:
            raise TableError(
                f"column {column.name!r} holds {len(categories)} different texts over all ranks, at most {CATEGORIES} can be "
                f"categories: leave it out with --ignore {column.name}, or turn it into numbers"
            )
        same.append(Column(column.name, column.kind, categories))
    return same
