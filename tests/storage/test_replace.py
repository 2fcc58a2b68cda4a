"""Writing replaces the old file whole or leaves it alone; permissions and links stay as they are."""

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import SafetensorError

import ntkgp
from ntkgp.storage import file as storage_file
from ntkgp.storage.replace import replacing
from tests.support.cases import by_name
from tests.support.files import fitted

# The shape checker of these tests draws random numbers of its own; and it is slow with functions inside of functions.
pytestmark = pytest.mark.usefixtures("unchecked")


def failing(error: Exception) -> Callable[..., None]:
    def fail(*args: object, **options: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(("owner", "name", "error", "kind"), [
    (Path, "mkdir", PermissionError(errno.EACCES, "Permission denied"), PermissionError),
    (storage_file, "save_file", SafetensorError("No space left on device"), OSError),
    (storage_file, "_sign", OSError(errno.ENOSPC, "No space left on device"), OSError),
    (os, "replace", PermissionError(errno.EPERM, "Operation not permitted"), PermissionError),
])  # fmt: skip
def test_a_failed_write_leaves_the_old_file(
    owner: object, name: str, error: Exception, kind: type[Exception], path: Path, monkeypatch: pytest.MonkeyPatch
):
    case = by_name("paper mlp")
    fitted(case).save(path)
    before = path.read_bytes()
    monkeypatch.setattr(owner, name, failing(error))
    with pytest.raises(kind, match=f"cannot write .*{path.name}: "):
        fitted(case, "low rank").save(path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_an_interrupted_write_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(storage_file, "_sign", failing(KeyboardInterrupt()))  # pyright: ignore[reportArgumentType]
    with pytest.raises(KeyboardInterrupt):
        fitted(by_name("paper mlp")).save(path)
    assert os.listdir(path.parent) == []


@pytest.mark.parametrize("links", [True, False])
def test_without_replacing(links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also on a file system without hard links."""
    if not links:
        monkeypatch.setattr(os, "link", failing(PermissionError(errno.EPERM, "Operation not permitted")))
    (tmp_path / "old").write_text("precious")
    for name in ("old", "new"):
        with (
            pytest.raises(FileExistsError, match="old was created") if name == "old" else contextlib.nullcontext(),
            replacing(tmp_path / name, replace=False) as temporary,
        ):
            temporary.write_text("text")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"old": "precious", "new": "text"}
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "old").stat().st_mode
    assert (tmp_path / "new").stat().st_nlink == 1


def test_where_nothing_can_be_written(path: Path):
    posterior = fitted(by_name("paper mlp"))
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*; create it first"):
        posterior.save(path.parent / "nowhere" / "p.safetensors")
    with pytest.raises(ValueError, match="must be a plain file"):
        posterior.save(path.parent)
    path.parent.chmod(0o500)
    try:
        if not os.access(path.parent, os.W_OK):  # the superuser may write anywhere
            with pytest.raises(PermissionError, match=f"cannot write .*{path.name}"):
                posterior.save(path)
    finally:
        path.parent.chmod(0o700)


def test_links_are_not_written_through(path: Path):
    posterior, link, victim = fitted(by_name("paper mlp")), path.with_name("link"), path.with_name("victim")
    victim.write_text("precious")
    for target in (victim, path.with_name("nothing")):
        link.symlink_to(target)
        with pytest.raises(ValueError, match="got a link"):
            posterior.save(link)
        link.unlink()
    assert victim.read_text() == "precious"
    posterior.save(path)
    link.symlink_to(path)
    ntkgp.load(link, by_name("paper mlp").module())


def test_permissions_stay(path: Path):
    posterior = fitted(by_name("paper mlp"))
    path.touch(mode=0o600)
    posterior.save(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_permissions_are_the_usual_ones(path: Path):
    """safetensors makes files that only their owner may read, whatever the umask says."""
    other = path.with_name("other")
    other.touch()
    fitted(by_name("paper mlp")).save(path)
    assert path.stat().st_mode == other.stat().st_mode
