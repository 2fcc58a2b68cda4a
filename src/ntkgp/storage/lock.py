"""Locks on files, which one process or thread holds at a time; the system releases the locks of a process that dies.

Where the system or the file system has no locks, a lock excludes only the other threads of its process.
"""

import errno
import os
import platform
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LOCK = ".ntkgp.lock"  # the file that is locked in a folder that is in use
OWNER = re.compile(r"(ntkgp )?process \d+ on [^\n]*|")  # text of a lock file; empty if there was no time or space to write it
UNSUPPORTED = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)  # errors of a file system without locks
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)  # errors of read-only files and folders

_held: dict[tuple[int, int], int] = {}  # descriptors of the files that this process has locked, by device and inode


class InUseError(OSError):
    """Another process or thread uses a folder."""


@contextmanager
def folder_in_use(folder: Path, by: str, wait: bool = False) -> Iterator[None]:
    """Reserve a folder; if it is in use, raise InUseError, which names the process. `by` says what uses it, as "another fit".

    With `wait`, wait until the folder is free. A folder in which this process cannot create files needs no lock: this process
    changes nothing there.
    """
    path = folder / LOCK
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(path, wait=wait))
        except BlockingIOError as error:
            with suppress(OSError):
                owner = _text(path)
                by = f"{by} of this process" if owner == _this_process() else owner or by
            message = f"{folder} is in use by {by}; wait until it ends or stop it, or pass another folder"
            raise InUseError(errno.EBUSY, message) from error
        except OSError as error:
            if error.errno not in FORBIDDEN or path.exists():
                raise
        yield


@contextmanager
def locked(path: Path, *, wait: bool = False, from_processes: bool = False) -> Iterator[None]:
    """Hold the lock of a file, which is created, and deleted in the end. Its text names the process.

    Raise FileExistsError if there is something that this library did not create. If somebody else holds the lock, wait, or
    raise BlockingIOError. With `from_processes`, raise OSError where the lock would not exclude other processes.
    """
    owner, descriptor = os.getpid(), _acquire(path, wait, from_processes)
    with suppress(OSError):  # the disk may be full; or another user's file, which cannot be written to
        os.ftruncate(descriptor, 0)
        os.write(descriptor, _this_process().encode())
    try:
        yield
    finally:
        if os.getpid() == owner:  # not in a process that was forked meanwhile
            with suppress(OSError):
                if os.path.samestat(os.fstat(descriptor), path.lstat()):
                    path.unlink()  # before the release: who has opened the file already then notices, and opens a new one
            _release(descriptor)


def check_lock_file(path: Path) -> None:
    """Raise FileExistsError if there is anything but a lock file of this library, which would be overwritten and deleted."""
    try:
        status = path.lstat()
        own = stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and OWNER.fullmatch(_text(path)) is not None
    except FileNotFoundError:
        return
    if not own:
        message = f"{path} is needed as a lock, but ntkgp did not create what is there; move it away, or pass another folder"
        raise FileExistsError(errno.EEXIST, message)


def _text(path: Path) -> str:
    with open(path, "rb") as file:
        return file.read(1000).decode(errors="replace")


def _acquire(path: Path, wait: bool, from_processes: bool) -> int:
    """Open and lock the file; return its descriptor."""
    while True:
        check_lock_file(path)
        descriptor = _open(path)
        try:
            _flock(descriptor, wait, from_processes)
            status = os.fstat(descriptor)
            if _held.setdefault((status.st_dev, status.st_ino), descriptor) != descriptor:
                raise BlockingIOError(errno.EAGAIN, "another thread holds the lock")
            if os.path.samestat(status, os.stat(path)):
                return descriptor
        except FileNotFoundError:  # deleted by the last owner after it was opened here
            pass
        except BaseException:
            _release(descriptor)
            raise
        _release(descriptor)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as error:
        if error.errno not in FORBIDDEN or not path.exists():
            raise
        return os.open(path, os.O_RDONLY)  # left by another user


def _flock(descriptor: int, wait: bool, required: bool) -> None:
    """Lock an open file, if the system can do that or it is required."""
    try:
        if fcntl is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if required or error.errno not in UNSUPPORTED:
            raise


def _release(descriptor: int) -> None:
    """Unlock and close a file."""
    for file in [file for file, held in list(_held.items()) if held == descriptor]:
        del _held[file]
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough if a forked process has the descriptor, too
    os.close(descriptor)


def _forget() -> None:
    """Close the locked files in a forked process: the locks belong to its parent."""
    for descriptor in _held.values():
        os.close(descriptor)
    _held.clear()


def _this_process() -> str:
    return f"ntkgp process {os.getpid()} on {platform.node()}"


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
