"""A model folder is replaced whole or not at all: whoever reads it meanwhile gets the model before or the one after."""

import errno
import os
import shutil
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor

from ntkgp.apps.tables import folder as table_folder
from ntkgp.apps.tables.columns import Column, TableError
from ntkgp.apps.tables.named import NamedColumns, NamedModel, fit_named
from ntkgp.apps.tables.options import TableOptions
from ntkgp.storage import replace
from ntkgp.storage.lock import InUseError, folder_in_use
from tests.support.helpers import ROOT
from tests.support.ranks import CONTEXT, serve

SAVES = 60
TABLE = pl.DataFrame({"x": [0.0, 1.0, 2.0, 3.0], "y": [0.0, 1.0, 0.0, 2.0]})


@cache
def model(power: float) -> NamedModel:
    """Models of different powers have no file in common."""
    options = TableOptions(width=2, warm_networks=0, steps=1, starts=1, seed=int(power))
    return fit_named(TABLE.with_columns(pl.col("y") ** power), NamedColumns((Column("x", "number"),), ("y",)), options)


def mean(folder: Path) -> Tensor:
    return table_folder.load(folder).predict(TABLE).mean


def answer(power: float) -> Tensor:
    return model(power).predict(TABLE).mean


def tree(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def in_process(task: Callable[..., None], *arguments: Any) -> Any:
    serve()
    process = CONTEXT.Process(target=task, args=arguments, daemon=True)
    process.start()
    return process


def saving(folder: Path, times: int) -> None:
    torch.set_num_threads(1)
    for k in range(times):
        table_folder.save(model(1.0 + k % 2), folder)


def test_another_process_saves(tmp_path: Path):
    expected = [answer(1.0), answer(2.0)]
    table_folder.save(model(1.0), tmp_path / "model")
    process = in_process(saving, tmp_path / "model", SAVES)
    while process.exitcode is None:
        try:
            found = mean(tmp_path / "model")
        except TableError as error:
            assert "is being replaced" in str(error)  # noqa: PT017
        else:
            assert any(torch.equal(found, one) for one in expected)
    assert process.exitcode == 0


def test_two_processes_save(tmp_path: Path):
    processes = [in_process(saving, tmp_path / "model", SAVES) for _ in range(2)]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert any(torch.equal(mean(tmp_path / "model"), answer(power)) for power in (1.0, 2.0))
    assert len(tree(tmp_path / "model")) == 3


def test_a_save_reserves_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another one waits: it would remove the files that this one has not named yet."""
    write, refused = table_folder.write, []

    def watched(*arguments: Any) -> None:
        write(*arguments)
        with pytest.raises(InUseError) as error, folder_in_use(tmp_path, "another save"):
            pass
        refused.append(error)

    monkeypatch.setattr(table_folder, "write", watched)
    table_folder.save(model(1.0), tmp_path)
    assert len(refused) == 1
    with folder_in_use(tmp_path, "another save"):
        pass


def replacing_at(monkeypatch: pytest.MonkeyPatch, folder: Path, when: Callable[[int], bool]) -> list[int]:
    """Save the other model before some of the reads of a load."""
    read, calls = table_folder.read, [0]

    def interrupted(*arguments: Any) -> Any:
        calls[0] += 1
        if when(calls[0]):
            table_folder.save(model(1.0 + calls[0] % 2), folder)
        return read(*arguments)

    monkeypatch.setattr(table_folder, "read", interrupted)
    return calls


def test_a_load_that_is_overtaken_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "model"
    table_folder.save(model(1.0), folder)
    calls = replacing_at(monkeypatch, folder, lambda call: call in (1, 2))
    assert torch.equal(mean(folder), answer(1.0))
    assert calls == [3]


def test_a_load_that_is_overtaken_again_and_again_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "model"
    table_folder.save(model(1.0), folder)
    calls = replacing_at(monkeypatch, folder, lambda call: True)
    with pytest.raises(TableError, match=r"model is being replaced by another process again and again; .*try again"):
        table_folder.load(folder)
    assert calls == [table_folder.ATTEMPTS]


def killed(folder: Path, moment: int, after: bool) -> None:
    """A save that is killed at its `moment`-th rename, just before or just after."""
    torch.set_num_threads(1)
    rename, count = os.replace, [0]

    def counted(*arguments: Any) -> None:
        count[0] += 1
        if not after and count[0] == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(*arguments)
        if after and count[0] == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    replace.os.replace = counted
    table_folder.save(model(2.0), folder)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("moment", [1, 2, 3, 4, 5])
def test_a_save_that_is_killed(moment: int, after: bool, tmp_path: Path):
    """Its unfinished files go with the next save. Finished ones that no JSON names stay: they could be the user's."""
    folder, orphans = tmp_path / "model", max(0, moment - 3 + after) if moment < 5 or not after else 2
    table_folder.save(model(1.0), folder)
    process = in_process(killed, folder, moment, after)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert torch.equal(mean(folder), answer(2.0 if moment == 5 and after else 1.0))
    table_folder.save(model(2.0), folder)
    assert torch.equal(mean(folder), answer(2.0))
    assert len(tree(folder)) == 3 + orphans


def test_a_save_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "model"
    table_folder.save(model(1.0), folder)
    before, rename, count = tree(folder), os.replace, [0]

    def failing(*arguments: Any) -> None:
        count[0] += 1
        if count[0] in (2, 7):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rename(*arguments)

    monkeypatch.setattr(replace.os, "replace", failing)
    for _ in range(2):  # the posterior, then the JSON
        with pytest.raises(OSError, match="No space left on device"):
            table_folder.save(model(2.0), folder)
        assert tree(folder) == before
    assert torch.equal(mean(folder), answer(1.0))


def test_two_saves_that_must_not_replace(tmp_path: Path):
    """The second one finds the model of the first, which began later but ended earlier."""
    table_folder.save(model(1.0), tmp_path, replace=False)
    before = tree(tmp_path)
    with pytest.raises(FileExistsError, match=r"model\.json was created during the work, and is not replaced"):
        table_folder.save(model(2.0), tmp_path, replace=False)
    assert tree(tmp_path) == before
    assert torch.equal(mean(tmp_path), answer(1.0))


def test_only_files_of_the_model_are_replaced(tmp_path: Path):
    """Not the files of somebody else, whatever their names."""
    folder = tmp_path / "model"
    folder.mkdir()
    mine = ["network.safetensors", "posterior.safetensors", "notes.txt", "network-old.safetensors"]
    mine += [f"{part}-0123456789abcdef.safetensors" for part in ("network", "posterior")]
    for name in mine:
        (folder / name).write_text("precious")
    for power in (1.0, 2.0):
        table_folder.save(model(power), folder)
    assert torch.equal(mean(folder), answer(2.0))
    assert len(tree(folder)) == 3 + len(mine)
    assert all((folder / name).read_text() == "precious" for name in mine)


def test_a_model_of_version_1_is_replaced(tmp_path: Path):
    shutil.copytree(ROOT / "tests" / "storage" / "format2" / "table", tmp_path / "model")
    assert "network.safetensors" in tree(tmp_path / "model")
    table_folder.save(model(1.0), tmp_path / "model")
    assert torch.equal(mean(tmp_path / "model"), answer(1.0))
    assert len(tree(tmp_path / "model")) == 3
    assert "network.safetensors" not in tree(tmp_path / "model")
