"""The files that a command writes, checked before its work begins.

A file that the command reads is never replaced, any other existing file only with --force.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ntkgp.apps.tables.columns import TableError
from ntkgp.apps.tables.reading import check_unicode
from ntkgp.storage.replace import check_plain, temporary_folder

Force = Annotated[bool, typer.Option("--force", help="Replace files that exist already.")]


def check_outputs(files: Sequence[Path], force: bool, tables: Sequence[Path] = (), model: Path | None = None) -> None:
    """Raise an error unless all files can be written. `tables` and the folder `model` are what the command reads."""
    for file in files:
        check_unicode(file)
        _check_not_read(file, tables, model)
        check_plain(file)
        if file.exists() and not force:
            raise TableError(f"{file} exists already; pass --force to replace it, or another --out")
        _check_creatable(file)


def _check_not_read(file: Path, tables: Sequence[Path], model: Path | None) -> None:
    in_model = list(model.iterdir()) if model is not None and model.is_dir() else []
    if any(_same(file, source) for source in [*tables, *in_model]):
        raise TableError(f"{file} is a file that this command reads; pass another --out")
    inside = file.parent.resolve()
    if model is not None and any(_same(place, model) for place in [file, inside, *inside.parents]):
        raise TableError(f"{file} cannot be written, because this command reads the model {model}; pass another --out")


def _same(one: Path, other: Path) -> bool:
    """Whether both exist and are the same file or folder, by whatever names."""
    return one.exists() and other.exists() and os.path.samefile(one, other)


def _check_creatable(file: Path) -> None:
    """Try to create something where the file or the first of its missing folders will be."""
    place = next(folder for folder in file.absolute().parents if os.path.lexists(folder))
    if not place.is_dir():
        raise TableError(f"{file} cannot be written, because {place} is not a folder; pass another --out")
    missing = file.absolute().relative_to(place).parts
    if ".." in missing:  # who creates the missing folders gives the path another meaning
        raise TableError(
            f"{file} goes back with '..', but {place / missing[0]} does not exist; pass another --out without '..'"
        )
    try:
        with temporary_folder(place):
            pass
    except OSError as error:
        raise OSError(error.errno, f"cannot write {file}: {error.strerror}; pass another --out") from error
