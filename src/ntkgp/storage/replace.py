"""Files that are written completely or not at all."""

import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

TEMPORARY_SUFFIX = ".part"  # suffix of folders with unfinished files


def check_plain(target: Path) -> None:
    """Check that a path to write to is a plain file or does not exist yet."""
    if target.is_symlink() or (target.exists() and not target.is_file()):
        raise ValueError(f"{target} must be a plain file or not exist yet, got a link, a folder or a device; pass another path")


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces `target` at the end of the block; an error leaves no trace.

    The temporary file is in a temporary folder, because safetensors creates further files beside it: a write that is killed
    leaves only this folder, and :func:`sweep` removes it. safetensors creates files that only the user can read, so the new
    file gets the permissions of `target`, or the default permissions.
    """
    folder = target.with_name(f".{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
    temporary, default = folder / "new", folder / "usual"
    try:
        folder.mkdir()
        default.touch()
        yield temporary
        shutil.copymode(target if target.exists() else default, temporary)
        os.replace(temporary, target)
    except (OSError, SafetensorError) as error:
        number = error_number(error)
        raise OSError(number or errno.EIO, f"cannot write {target}: {os.strerror(number) if number else error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove the temporary folders that killed writes left in this folder."""
    for left in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()


def error_number(error: OSError | SafetensorError) -> int | None:
    """The system's error number; safetensors gives it only in its message."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None
