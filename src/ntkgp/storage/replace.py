"""Files that are written completely or not at all."""

import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from ntkgp.storage.lock import locked

TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.part")  # name of a folder with unfinished files
IN_USE = "usual"  # file in it that its writer has locked; it has the default permissions
FILES = "files"  # folder in it with several new files, and further temporary folders
CONTENT = re.compile(rf"new|{IN_USE}|\.tmp[0-9A-Za-z]{{6}}")  # names of the files in it; the last one is of safetensors


def check_plain(target: Path) -> None:
    """Check that a path to write to is a plain file or does not exist yet."""
    if target.is_symlink() or (target.exists() and not target.is_file()):
        raise ValueError(f"{target} must be a plain file or not exist yet, got a link, a folder or a device; pass another path")


@contextmanager
def replacing(target: Path, replace: bool = True) -> Iterator[Path]:
    """Yield the path of a temporary file, which becomes `target` at the end of the block; an error leaves no trace.

    The temporary file is in a temporary folder, because safetensors creates further files beside it: a write that is killed
    leaves only this folder, and the next write removes it. safetensors creates files that only the user can read, so the new
    file gets the permissions of `target`, or the default permissions. If `target` exists and `replace` is false, raise
    FileExistsError.
    """
    sweep(target.parent)
    with _explained(target), temporary_folder(target.parent) as folder:
        yield folder / "new"
        _move(folder / "new", target, folder / IN_USE, replace)


@contextmanager
def replacing_files(folder: Path, replace: bool = True, last: str = "") -> Iterator[Path]:
    """Yield a temporary folder, whose files move to `folder` at the end of the block; the file `last` is the last one.

    `folder` is created if it does not exist. Its other files stay. An error in the block leaves no trace. If one of the files
    exists in `folder` and `replace` is false, raise FileExistsError; files that have moved before stay.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sweep(folder)
    with _explained(folder), temporary_folder(folder) as temporary:
        new = temporary / FILES
        new.mkdir()
        yield new
        for file in sorted(new.iterdir(), key=lambda file: (file.name == last, file.name)):
            _move(file, folder / file.name, temporary / IN_USE, replace)


def _move(new: Path, target: Path, like: Path, replace: bool) -> None:
    """Make the new file `target`, with the permissions of the old `target`, or else of the file `like`."""
    with open(new, "r+b") as file:
        os.fsync(file.fileno())
    shutil.copymode(target if target.exists() else like, new)
    if not replace:
        _claim(new, target)
    os.replace(new, target)  # does nothing if both names are links to one file


def _claim(new: Path, target: Path) -> None:
    """Create `target`, as a link to the new file where the file system has links; raise FileExistsError if it exists."""
    try:
        try:
            os.link(new, target)
        except FileExistsError:
            raise
        except OSError:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL))
    except FileExistsError as error:
        message = f"{target} was created during the work, and is not replaced; pass another path, or --force to replace it"
        raise FileExistsError(errno.EEXIST, message) from error


@contextmanager
def _explained(target: Path) -> Iterator[None]:
    """Say what could not be written."""
    try:
        yield
    except FileExistsError:
        raise
    except (OSError, SafetensorError) as error:
        number = error_number(error)
        raise OSError(number or errno.EIO, f"cannot write {target}: {os.strerror(number) if number else error}") from error


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """A new folder for unfinished files. Its file IN_USE is locked, so that :func:`sweep` leaves the folder alone."""
    with ExitStack() as stack:
        folder = None
        while folder is None:
            folder = parent / f".{secrets.token_hex(8)}.part"
            folder.mkdir()
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            try:
                stack.enter_context(locked(folder / IN_USE))
            except (BlockingIOError, FileNotFoundError):  # a sweep found the folder before it was locked
                folder = None
        yield folder


def sweep(folder: Path) -> None:
    """Remove the temporary folders that killed writes left in this folder, and nothing else.

    A temporary folder stays if it holds anything that the library does not create, if its writer is alive, or if the system
    has no locks, which show that.
    """
    with suppress(OSError):  # not readable
        for left in folder.iterdir():
            if TEMPORARY.fullmatch(left.name) and left.is_dir() and not left.is_symlink():
                with suppress(OSError):  # in use, just removed by its writer, or of another user
                    _remove_abandoned(left)


def _remove_abandoned(folder: Path) -> None:
    if _is_own(folder):
        with locked(folder / IN_USE, from_processes=True):
            for path in folder.iterdir():
                if path.name == FILES:
                    shutil.rmtree(path)
                elif path.name != IN_USE:
                    path.unlink()
        folder.rmdir()


def _is_own(folder: Path | str) -> bool:
    """Whether a temporary folder holds only what the library creates."""
    with os.scandir(folder) as entries:
        return all(
            CONTENT.fullmatch(entry.name) is not None
            if entry.is_file(follow_symlinks=False)
            else entry.name == FILES and entry.is_dir(follow_symlinks=False) and _is_own_files(entry.path)
            for entry in entries
        )


def _is_own_files(folder: str) -> bool:
    """Whether a folder FILES holds only files, and temporary folders with what the library creates."""
    with os.scandir(folder) as entries:
        return all(
            entry.is_file(follow_symlinks=False)
            or (TEMPORARY.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False) and _is_own(entry.path))
            for entry in entries
        )


def error_number(error: OSError | SafetensorError) -> int | None:
    """The system's error number; safetensors and polars give it only in their messages."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None
