"""A checkpoint folder belongs to one fit at a time; a second one is refused, and a killed one leaves it free."""

import contextlib
import errno
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import ntkgp
from ntkgp.storage import lock, stages
from tests.support.cases import by_name
from tests.support.helpers import seeded
from tests.support.ranks import CONTEXT, METHODS, TIMEOUT, run, serve, shard_of
from tests.support.resumable import child, fitted, values


@contextlib.contextmanager
def at_write(monkeypatch: pytest.MonkeyPatch, number: int, act) -> Iterator[list[object]]:
    """`act` in the middle of a fit, before its `number`-th write; what comes of it."""
    count, write, found = [0], stages.write, []

    def writing(*arguments) -> None:
        count[0] += 1
        if count[0] == number:
            found.append(act())
        write(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(stages, "write", writing)
        yield found
    assert len(found) == 1


def in_another_process(method: str, folder: Path) -> object:
    with child(method, folder) as second:
        return second.answer


@pytest.mark.parametrize("method", ["rank", "gd"])
def test_a_second_process_is_refused(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole, folder = values(fitted(method, None)), tmp_path / "state"
    with at_write(monkeypatch, 3, lambda: in_another_process(method, folder)) as found:
        assert torch.equal(values(fitted(method, folder)), whole)
    refusal = found[0]
    assert isinstance(refusal, OSError), refusal
    assert refusal.args[0] == str(errno.EBUSY)
    assert f"{folder} is in use by ntkgp process {os.getpid()} on " in refusal.args[1]
    assert "wait until" in refusal.args[1]
    assert "pass another folder" in refusal.args[1]
    assert torch.equal(values(fitted(method, folder)), whole)
    assert not list(folder.glob(".*"))


def test_a_second_thread_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also where the system has no locks."""
    whole = values(fitted("rank", None))

    def in_another_thread() -> object:
        answers: list[object] = []

        def second() -> None:
            try:
                answers.append(fitted("rank", folder))
            except OSError as error:
                answers.append(error)

        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
        return answers[0]

    for name, system in {"locks": lock.fcntl, "no locks": None}.items():
        folder = tmp_path / name
        with monkeypatch.context() as patch, at_write(monkeypatch, 3, in_another_thread) as found:
            patch.setattr(lock, "fcntl", system)
            assert torch.equal(values(fitted("rank", folder)), whole)
        assert isinstance(found[0], OSError), found
        assert "is in use by another fit of this process" in str(found[0])


def test_one_checkpoint_object_for_two_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The refusal of the second fit does not set the folder free while the first still uses it."""
    case, keep = by_name("paper mlp"), ntkgp.storage.Checkpoint(tmp_path, every=0)

    def fit() -> ntkgp.posterior.Posterior:
        return case.fit(METHODS["rank"], generator=seeded(), checkpoint=keep)

    def refused_twice() -> None:
        for _ in range(2):
            with pytest.raises(OSError, match="is in use by another fit of this process"):
                fit()

    with at_write(monkeypatch, 3, refused_twice):
        fit()
    fit()


def test_fits_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A fit that failed sets the folder free at once, even while somebody holds its error."""

    def fail() -> None:
        raise RuntimeError("enough")

    errors = []
    for _ in range(2):
        with pytest.raises(RuntimeError, match="enough") as error, at_write(monkeypatch, 1 + len(errors), fail):
            fitted("rank", tmp_path)
        errors.append(error)
    fitted("rank", tmp_path)
    fitted("rank", tmp_path)
    assert not list(tmp_path.glob(".*"))


def killed(folder: Path, still: Path) -> None:
    """A process that dies in the middle of a fit; one that it has forked lives until somebody writes to the pipe `still`."""
    torch.set_num_threads(1)

    def die() -> None:
        if os.fork() == 0:
            still.read_text()
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    with at_write(pytest.MonkeyPatch(), 3, die):
        fitted("rank", folder)


def test_a_killed_process_leaves_the_folder_free(tmp_path: Path):
    serve()
    folder, still = tmp_path / "state", tmp_path / "still"
    os.mkfifo(still)
    process = CONTEXT.Process(target=killed, args=(folder, still), daemon=True)
    process.start()
    process.join()
    try:
        assert process.exitcode == -signal.SIGKILL
        assert [path.name for path in folder.glob(".*")] == [lock.LOCK]  # which nobody holds
        assert torch.equal(values(fitted("rank", folder)), values(fitted("rank", None)))
        assert not list(folder.glob(".*"))
    finally:
        still.write_text("")


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_forked_process_does_not_keep_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A worker of a DataLoader, say, that lives longer than the fit, or leaves it by an error of its own."""
    reader, writer = os.pipe()
    pids: list[int] = []

    def fork() -> None:
        pids.append(os.fork())
        if pids[-1] == 0:
            os.close(writer)
            os.read(reader, 1)  # until the test ends
            os._exit(0)

    def leave() -> None:
        pids.append(os.fork())
        if pids[-1] == 0:
            raise KeyboardInterrupt
        os.waitpid(pids[-1], 0)
        with pytest.raises(OSError, match="is in use by another fit of this process"):
            fitted("rank", tmp_path)

    try:
        with at_write(monkeypatch, 3, fork):
            fitted("rank", tmp_path / "long")
        assert isinstance(in_another_process("rank", tmp_path / "long"), torch.Tensor)
        with at_write(monkeypatch, 3, leave):
            try:
                fitted("rank", tmp_path)
            finally:
                if pids[-1] == 0:
                    os._exit(0)
    finally:
        os.close(reader)
        os.close(writer)
        os.waitpid(pids[0], 0)


def test_a_folder_of_somebody_who_reads_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Where nothing can be created, nothing can be lost: there is nothing to lock."""
    fitted("rank", tmp_path)
    opened = os.open

    def read_only(path, flags: int, *arguments, **options) -> int:
        if flags & os.O_CREAT and str(path).startswith(str(tmp_path)):
            raise OSError(errno.EROFS, "Read-only file system")
        return opened(path, flags, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", read_only)
        fitted("rank", tmp_path)


def in_group(rank: int, size: int, folder: str) -> list[object]:
    """The second fit of the ranks is refused by rank 0 alone, and all of them hear of it."""
    case, x, y, noise = shard_of("paper mlp", size, rank, "even")
    options = {"noise_var": noise, "method": METHODS["rank"], "checkpoint": folder}
    group = ntkgp.distributed.Group(timeout=TIMEOUT)
    first = values(ntkgp.fit(case.module(), x, y, generator=seeded(), group=group, **options))
    again = values(ntkgp.fit(case.module(), x, y, generator=seeded(), group=group, **options))
    with lock.folder_in_use(Path(folder), "another fit") if rank == 0 else contextlib.nullcontext():
        group.any(False)
        try:
            ntkgp.fit(case.module(), x, y, generator=seeded(), group=ntkgp.distributed.Group(timeout=TIMEOUT), **options)
        except (OSError, ntkgp.distributed.GroupError) as error:
            return [torch.equal(first, again), type(error).__name__, str(error)]
    return []


def test_in_a_group_only_rank_0_locks(tmp_path: Path):
    for rank, (same, kind, text) in enumerate(run(2, in_group, 2, str(tmp_path), meet=True)):
        assert same
        assert kind == ("InUseError" if rank == 0 else "GroupError")
        assert "is in use by another fit of this process" in text


def test_systems_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Some network file systems have none; a fit still works there."""

    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    assert lock.fcntl is not None
    monkeypatch.setattr(lock.fcntl, "flock", unsupported)
    assert torch.equal(values(fitted("rank", tmp_path)), values(fitted("rank", None)))
    assert not list(tmp_path.glob(".*"))
