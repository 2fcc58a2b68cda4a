"""Locks on files: one owner at a time, whatever happens to the file."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ntkgp.storage import lock
from ntkgp.storage.lock import InUseError, folder_in_use, locked


def test_one_owner_at_a_time(tmp_path: Path):
    path = tmp_path / "lock"
    with locked(path), pytest.raises(BlockingIOError), locked(path):
        pass
    with locked(path):
        assert path.exists()
    assert not path.exists()


def test_a_file_that_its_last_owner_deletes_is_not_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Between opening and locking: a lock on a deleted file would exclude nobody."""
    path, flock, deleted = tmp_path / "lock", lock._flock, []

    def late(descriptor: int, *options: bool) -> None:
        if not deleted:
            path.unlink()
            deleted.append(path)
        flock(descriptor, *options)

    monkeypatch.setattr(lock, "_flock", late)
    with locked(path):
        assert path.exists()
        with pytest.raises(BlockingIOError), locked(path):
            pass
    assert not lock._held


FOREIGN: dict[str, Callable[[Path, Path], object]] = {
    "a link": lambda path, other: path.symlink_to(other),
    "a link to nothing": lambda path, other: path.symlink_to("nowhere"),
    "a hard link": lambda path, other: path.hardlink_to(other),
    "a hard link to nothing but a name": lambda path, other: (other.write_text(""), path.hardlink_to(other)),
    "a folder": lambda path, other: path.mkdir(),
    "a pipe": lambda path, other: os.mkfifo(path),
    "a file of the user": lambda path, other: path.write_text("precious"),
    "one that begins like ours": lambda path, other: path.write_text("ntkgp process 1 on host\nprecious"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_the_library_did_not_create_is_not_a_lock(what: str, tmp_path: Path):
    path, other = tmp_path / lock.LOCK, tmp_path / "other"
    other.write_text("precious")
    FOREIGN[what](path, other)
    before = other.read_text(), path.lstat()
    for attempt in (lambda: lock.check_lock_file(path), folder_in_use(tmp_path, "another fit").__enter__):
        with pytest.raises(FileExistsError, match=r"ntkgp\.lock .*did not create.*; move it away, or pass another folder"):
            attempt()
    after = path.lstat()
    assert other.read_text() == before[0]
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before[1].st_ino, before[1].st_size, before[1].st_mtime_ns)
    assert not lock._held


@pytest.mark.parametrize("text", ["", "process 12 on some.host", "ntkgp process 12 on some.host"])
def test_what_a_killed_process_left_is_a_lock(text: str, tmp_path: Path):
    """Also one of an older version, or one that was killed or had no space to write."""
    path = tmp_path / lock.LOCK
    path.write_text(text)
    lock.check_lock_file(path)
    with folder_in_use(tmp_path, "another fit"):
        assert path.read_text().startswith(f"ntkgp process {os.getpid()} on ")
    assert not path.exists()


def test_a_file_that_took_the_place_of_the_lock_stays(tmp_path: Path):
    path = tmp_path / lock.LOCK
    with folder_in_use(tmp_path, "another fit"):
        path.unlink()
        path.write_text("precious")
    assert path.read_text() == "precious"


def test_nothing_stays_open_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = len(os.listdir("/proc/self/fd"))
    with folder_in_use(tmp_path, "another fit"):
        for _ in range(20):
            with pytest.raises(InUseError), folder_in_use(tmp_path, "another fit"):
                pass
        assert len(os.listdir("/proc/self/fd")) == before + 1

    def failing(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    assert lock.fcntl is not None
    monkeypatch.setattr(lock.fcntl, "flock", failing)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)), folder_in_use(tmp_path, "another fit"):
        pass
    assert len(os.listdir("/proc/self/fd")) == before
