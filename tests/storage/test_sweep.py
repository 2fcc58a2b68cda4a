"""What killed writes leave is removed; what belongs to a user, or to a writer that is alive, is not."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ntkgp.storage import lock
from ntkgp.storage.replace import replacing, replacing_files, sweep
from tests.support.ranks import CONTEXT, serve
from tests.support.resumable import fitted

OURS = ".0123456789abcdef.part"  # a name as the library gives to its temporary folders
KILLED = """
import os, signal, sys
from pathlib import Path
from ntkgp.storage.replace import replacing
with replacing(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    (temporary.parent / ".tmpAbC019").write_text("safetensors was here")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def file(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("precious")


def link(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(path.parent.parent / "elsewhere")


FOREIGN: dict[str, Callable[[Path], object]] = {
    "a folder of another name": lambda here: file(here / ".abc.part" / "new"),
    "17 digits": lambda here: file(here / ".0123456789abcdef0.part" / "new"),
    "capital digits": lambda here: file(here / ".0123456789ABCDEF.part" / "new"),
    "something after the name": lambda here: file(here / f"{OURS}.old" / "new"),
    "a foreign file inside": lambda here: (file(here / OURS / "new"), file(here / OURS / "thesis.tex")),
    "a folder inside": lambda here: file(here / OURS / "new" / "thesis.tex"),
    "a folder deep inside": lambda here: file(here / OURS / "files" / "thesis" / "thesis.tex"),
    "a foreign file deep inside": lambda here: file(here / OURS / "files" / OURS / "thesis.tex"),
    "a link deep inside": lambda here: link(here / OURS / "files" / "new"),
    "a link inside": lambda here: link(here / OURS / "new"),
    "a file": lambda here: file(here / OURS),
    "a link to a folder": lambda here: (here / OURS).symlink_to(here / "elsewhere"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_the_library_did_not_write_stays(what: str, tmp_path: Path):
    file(tmp_path / "elsewhere" / "new")
    FOREIGN[what](tmp_path)
    before = tree(tmp_path)
    fitted("rank", tmp_path)
    assert [name for name in tree(tmp_path) if not name.endswith(".safetensors")] == before
    assert (tmp_path / "elsewhere" / "new").read_text() == "precious"


KILLED_AMONG_SEVERAL = """
import os, signal, sys
from pathlib import Path
from ntkgp.storage.replace import replacing, replacing_files
with replacing_files(Path(sys.argv[1])) as folder:
    (folder / "report.txt").write_text("half")
    with replacing(folder / "report.json") as temporary:
        temporary.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
"""


def write_one(folder: Path) -> None:
    with replacing(folder / "one") as temporary:
        temporary.touch()


def write_several(folder: Path) -> None:
    with replacing_files(folder) as temporary:
        (temporary / "one").touch()


@pytest.mark.parametrize("write", [write_one, write_several])
@pytest.mark.parametrize(("script", "name", "left"), [(KILLED, "file", 4), (KILLED_AMONG_SEVERAL, "", 7)])
def test_the_next_write_removes_what_a_killed_one_left(
    script: str, name: str, left: int, write: Callable[[Path], None], tmp_path: Path
):
    subprocess.run([sys.executable, "-c", script, str(tmp_path / name)], check=False)
    assert len(tree(tmp_path)) == left
    write(tmp_path)
    assert tree(tmp_path) == ["one"]


def test_what_a_killed_write_leaves_is_removed(tmp_path: Path):
    for _ in range(2):
        subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "file")], check=False)
    assert len(tree(tmp_path)) == 4  # the second one has removed what the first one left
    sweep(tmp_path)
    assert tree(tmp_path) == []


@pytest.mark.parametrize("left", [[], ["usual"], ["new"], ["usual", "new", ".tmpAbC019"]])
def test_wherever_it_was_killed(left: list[str], tmp_path: Path):
    (tmp_path / OURS).mkdir()
    for name in left:
        (tmp_path / OURS / name).touch()
    sweep(tmp_path)
    assert tree(tmp_path) == []


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_writer_that_is_alive_is_left_alone(tmp_path: Path):
    """In this process, and in one that was forked while it writes and ends before it."""
    with replacing(tmp_path / "file") as temporary:
        temporary.write_text("new")
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        before = tree(tmp_path)
        sweep(tmp_path)
        assert tree(tmp_path) == before
    assert tree(tmp_path) == ["file"]


def writing(path: Path, times: int) -> None:
    for k in range(times):
        with replacing(path) as temporary:
            temporary.write_text(str(k))


def test_writes_beside_sweeps(tmp_path: Path):
    """A sweep may come between any two steps of a write."""
    serve()
    writer = CONTEXT.Process(target=writing, args=(tmp_path / "file", 300), daemon=True)
    writer.start()
    while writer.exitcode is None:
        sweep(tmp_path)
    assert writer.exitcode == 0
    assert tree(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "299"


def test_without_locks_nothing_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nobody can tell then whether the writer is alive."""
    monkeypatch.setattr(lock, "fcntl", None)
    file(tmp_path / OURS / "new")
    sweep(tmp_path)
    assert (tmp_path / OURS / "new").exists()
