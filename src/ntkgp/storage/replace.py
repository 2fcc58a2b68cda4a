"""Files that are written whole or not at all."""

import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

PART = ".part"  # ends the names of what is not yet written


def check_plain(target: Path) -> None:
    """A path to write to: a file of its own, or nothing yet."""
    if target.is_symlink() or (target.exists() and not target.is_file()):
        raise ValueError(f"{target} must be a plain file or not exist yet, got a link, a folder or a device; give another path")


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A new file beside `target`, which takes its place at the end of the block; where that fails, it leaves no trace.

    It is made in a folder of its own, since safetensors makes files on the way: a write that is killed leaves just that folder,
    for :func:`sweep`. And safetensors makes them for the user's eyes only, where others may be meant to read them.
    """
    workshop = target.with_name(f".{secrets.token_hex(8)}{PART}")
    temporary, usual = workshop / "new", workshop / "usual"
    try:
        workshop.mkdir()
        usual.touch()
        yield temporary
        shutil.copymode(target if target.exists() else usual, temporary)
        os.replace(temporary, target)
    except (OSError, SafetensorError) as error:
        number = error_number(error)
        raise OSError(number or errno.EIO, f"cannot write {target}: {os.strerror(number) if number else error}") from error
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove what writes into this folder left when they were killed."""
    for left in folder.glob(f".*{PART}"):
        shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()


def error_number(error: OSError | SafetensorError) -> int | None:
    """The system's number of an error, which safetensors says in words."""
    if isinstance(error, OSError):
        return error.errno
    said = re.search(r"\(os error (\d+)\)", str(error))
    return int(said[1]) if said else None
