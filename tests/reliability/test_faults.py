"""Faults from outside, while a fit keeps a checkpoint: killed at any moment, stopped by hand, a disk that is full, a folder
that cannot be written. What was kept stays whole, and the fit begun again ends bit for bit where it would have.

`NTKGP_LONG=1` kills more than fifty times, and keeps the count.
"""

import errno
import os
import random
import resource
import signal
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import ntkgp
from ntkgp.storage import file as storage_file
from ntkgp.storage import stages
from tests.support.long_form import LONG, recorded
from tests.support.resumable import RESUMABLE, child, fitted, timed, values

KILLS, STOPS = (15, 3) if LONG else (2, 1)  # of each method
COUNTS = {"kills": 0, "stops": 0, "fits": 0}
LEFT_IN: dict[str, int] = {}
each_method = pytest.mark.parametrize("method", RESUMABLE)


@pytest.fixture(autouse=True, scope="module")
def _recorded(request: pytest.FixtureRequest) -> Iterator[None]:
    with recorded("faults", request, lambda: {**COUNTS, "left_in": dict(sorted(LEFT_IN.items()))}):
        yield


@pytest.fixture(autouse=True, scope="module")
def _served(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The server that processes are forked from takes long to start, which would be taken for the time of a fit."""
    timed("rtol", tmp_path_factory.mktemp("served"), 0)


def check_whole(folder: Path) -> None:
    """Every file of a checkpoint can be read, whatever the moment; where the fit had come to is counted."""
    kept = [path for path in folder.glob("*.safetensors") if storage_file.read(path, torch.device("cpu"))]
    newest = max(kept, key=lambda path: path.stat().st_mtime_ns, default=None)
    stage = "nothing yet" if newest is None else newest.stem.split("-")[0]
    LEFT_IN[stage] = LEFT_IN.get(stage, 0) + 1


@each_method
def test_killed_at_random_moments(method: str, tmp_path: Path):
    """A kill at any time of a fit, then another in what is left of it, until one gets through."""
    every, draw, kills, fits = 0.01, random.Random(method), 0, 0
    whole, took = timed(method, tmp_path / "undisturbed", every)
    assert torch.equal(values(fitted(method, None)), whole)
    while kills < KILLS:
        folder, answer, fits, patience = tmp_path / str(fits), None, fits + 1, 0.7 * took
        while answer is None:
            with child(method, folder, every) as victim:
                if not victim.ended(draw.uniform(0, patience)):
                    os.kill(victim.pid, signal.SIGKILL)
                answer = victim.answer
            if answer is None:
                kills += 1
                patience *= 1.2  # a machine that has become slower must come to an end, too
                check_whole(folder)
        assert isinstance(answer, Tensor), answer
        assert torch.equal(answer, whole)
        assert not list(folder.glob(".*"))
    COUNTS["kills"] += kills
    COUNTS["fits"] += fits


@each_method
def test_stopped_by_hand_at_random_moments(method: str, tmp_path: Path):
    """Ctrl-C, which Python may swallow in a callback: then once more, as a user would."""
    draw = random.Random(method)
    whole, took = timed(method, tmp_path / "undisturbed", 0)
    done = 0
    for k in range(20 * STOPS):
        if done == STOPS:
            break
        folder = tmp_path / str(k)
        with child(method, folder) as stopped:
            while not (folder / "start.safetensors").exists() and not stopped.ended(0.001):
                pass
            wait = draw.uniform(0, took / 2)
            while not stopped.ended(wait):
                os.kill(stopped.pid, signal.SIGINT)
                wait = 10
            answer = stopped.answer
        if isinstance(answer, Tensor) or (isinstance(answer, KeyboardInterrupt) and not answer.args):
            continue  # it had come to its end
        assert isinstance(answer, KeyboardInterrupt), answer
        assert str(answer) == f"stopped; call fit again with checkpoint={str(folder)!r} to resume from there"
        check_whole(folder)
        assert torch.equal(timed(method, folder, 0)[0], whole)
        assert not list(folder.glob(".*"))  # what was being written is swept up by now
        done += 1
    assert done == STOPS
    COUNTS["stops"] += done


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 400 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(folder)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("needs the right to mount a disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("method", ["rank", "adam"])
def test_a_disk_that_is_full(method: str, disk: Path):
    whole, folder, ballast = values(fitted(method, None)), disk / "state", disk / "ballast"
    ballast.write_bytes(bytes(370_000))
    with pytest.warns(
        ntkgp.storage.CheckpointWarning, match=rf"No space left on device.*the fit continues, and {folder} still holds"
    ):
        assert torch.equal(values(fitted(method, folder)), whole)
    check_whole(folder)
    ballast.unlink()
    assert torch.equal(values(fitted(method, folder)), whole)


def test_a_disk_that_is_full_from_the_start(disk: Path):
    (disk / "ballast").write_bytes(bytes(400 * 1024))
    with pytest.raises(OSError, match=r"cannot write checkpoints to .*state: .*; pass another folder") as error:
        fitted("rank", disk / "state")
    assert error.value.errno == errno.ENOSPC


@pytest.mark.parametrize("method", ["rank", "adam"])
def test_files_that_may_not_grow(method: str, tmp_path: Path):
    """As under ``ulimit -f``, or a quota: the larger files fail, and the smaller ones are not taken for more than they are."""
    whole, before = values(fitted(method, None)), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.warns(ntkgp.storage.CheckpointWarning, match="File too large"):
            assert torch.equal(values(fitted(method, tmp_path)), whole)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.glob(".*"))
    check_whole(tmp_path)
    assert torch.equal(values(fitted(method, tmp_path)), whole)


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Path]:
    """A folder of somebody whom permissions bind: root gives up its own for a while."""
    folder = tmp_path / "state"
    folder.mkdir()
    if os.geteuid() != 0:
        yield folder
        return
    modes = {path: path.stat().st_mode for path in (tmp_path, *tmp_path.parents)}
    try:
        for path, mode in modes.items():
            path.chmod(mode | 0o055)
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)
        yield folder
    finally:
        os.seteuid(0)
        for path, mode in modes.items():
            path.chmod(mode)


@pytest.mark.parametrize("method", ["rank", "adam"])
def test_a_folder_that_becomes_unwritable(method: str, user: Path, monkeypatch: pytest.MonkeyPatch):
    whole, writes, write = values(fitted(method, None)), [0], stages.write

    def locking(*arguments: object) -> None:
        writes[0] += 1
        if writes[0] == 4:
            user.chmod(0o500)
        write(*arguments)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(stages, "write", locking)
    with pytest.warns(ntkgp.storage.CheckpointWarning, match="Permission denied"):
        assert torch.equal(values(fitted(method, user)), whole)
    monkeypatch.undo()
    check_whole(user)
    with pytest.warns(ntkgp.storage.CheckpointWarning, match="Permission denied"):  # what there is can be read, and is used
        assert torch.equal(values(fitted(method, user)), whole)
    user.chmod(0o700)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(values(fitted(method, user)), whole)


def test_an_unwritable_folder_is_an_error_at_once(user: Path):
    user.chmod(0o500)
    with pytest.raises(OSError, match=r"cannot write checkpoints to .*Permission denied.*pass another folder"):
        fitted("rank", user)
    with pytest.raises(OSError, match=r"cannot write checkpoints to .*Permission denied.*pass another folder"):
        fitted("rank", user / "inside")


def test_a_checkpoint_that_may_not_be_read_is_named(user: Path):
    fitted("rank", user)
    (user / "head.safetensors").chmod(0o000)
    with pytest.raises(OSError, match=r"head\.safetensors"):
        fitted("rank", user)
