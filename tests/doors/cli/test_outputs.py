"""Where the commands write: never over their inputs, over other files only with --force, and all of it is checked at once."""

import errno
import io
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.exceptions import ComputeError

from ntkgp.apps.diagnostics.report import Report
from ntkgp.apps.figure1 import figure
from ntkgp.apps.tables import folder as table_folder
from ntkgp.apps.tables import named
from tests.doors.cli.commands import SMALL, houses, run, said

FIGURE = ["figure1", "--width", "8", "--max-steps", "5", "--tail", "0", "--quiet"]


@pytest.fixture
def here(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table and a model, in which the commands run."""
    houses(5).write_csv(tmp_path / "in.csv")
    houses(5).write_parquet(tmp_path / "in.parquet")
    shutil.copytree(home / "model", tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def content(folder: Path) -> dict[str, bytes | str]:
    """Every file, folder and link."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
        for path in folder.rglob("*")
    }


def linked(make: Callable[[str, str], None], name: str, source: str) -> str:
    make(source, name)
    return name


def made(name: str) -> str:
    os.mkdir(name)
    return name


SAME: dict[str, Callable[[], tuple[str, str]]] = {
    "the same name": lambda: ("in.csv", "in.csv"),
    "another spelling": lambda: ("in.csv", "model/../in.csv"),
    "the whole path": lambda: ("in.csv", os.path.abspath("in.csv")),
    "a link": lambda: ("in.csv", linked(os.symlink, "out.csv", "in.csv")),
    "the table is a link": lambda: (linked(os.symlink, "out.csv", "in.csv"), "in.csv"),
    "a hard link": lambda: ("in.csv", linked(os.link, "out.csv", "in.csv")),
    "through a link to the folder": lambda: ("in.csv", f"{linked(os.symlink, 'sub', '.')}/in.csv"),
    "Parquet": lambda: ("in.parquet", "in.parquet"),
    "Parquet, a link": lambda: ("in.parquet", linked(os.symlink, "out.parquet", "in.parquet")),
}


@pytest.mark.parametrize("options", [[], ["--force"]], ids=["", "force"])
@pytest.mark.parametrize("what", SAME)
def test_predictions_do_not_replace_their_table(what: str, options: list[str], here: Path):
    table, out = SAME[what]()
    before = content(here)
    text = said(run("predict", "model", table, "--out", out, *options, code=2))
    assert f"{out} is a file that this command reads; pass another --out" in text
    assert content(here) == before


IN_MODEL = {
    "the folder": lambda: "model",
    "a new file": lambda: "model/p.csv",
    "a new folder": lambda: "model/sub/p.csv",
    "through a link": lambda: f"{linked(os.symlink, 'sub', 'model')}/p.csv",
    "through a link to a folder in it": lambda: f"{linked(os.symlink, 'sub', made('model/deep'))}/p.csv",
    "a hard link": lambda: linked(os.link, "p.csv", "model/model.json"),
}


@pytest.mark.parametrize("what", IN_MODEL)
def test_nothing_is_written_into_the_model_that_is_read(what: str, here: Path):
    out = IN_MODEL[what]()
    before = content(here)
    for command in ("predict", "evaluate") if what != "a hard link" else ("predict",):
        text = said(run(command, "model", "in.csv", "--out", out, "--force", code=2))
        assert "this command reads" in text
        assert "pass another --out" in text
        assert content(here) == before


def test_a_fit_does_not_replace_its_table(here: Path):
    """By whatever name: one that model.json is a link to, say."""
    (here / "new").mkdir()
    os.link("in.csv", "new/model.json")
    before = content(here)
    text = said(run("fit", "in.csv", "--target", "price", "--out", "new", "--force", *SMALL, code=2))
    assert "new/model.json is a file that this command reads" in text
    assert content(here) == before


@pytest.mark.parametrize("arguments", [
    ["predict", "model", "in.csv", "--out", "nowhere/../in.csv"],
    ["predict", "model", "in.csv", "--out", "nowhere/deep/../../other.csv"],
    ["fit", "in.csv", "--target", "price", *SMALL, "--out", "nowhere/../model"],
    ["evaluate", "model", "in.csv", "--out", "nowhere/.."],
    [*FIGURE, "--out", "nowhere/../pictures"],
])  # fmt: skip
def test_the_way_back_from_a_missing_folder_is_refused(arguments: list[str], here: Path):
    """Creating the folder would turn the path into that of a file that the checks have not seen."""
    Path("other.csv").write_text("precious")
    before = content(here)
    text = said(run(*arguments, code=2))
    assert "nowhere does not exist" in text
    assert "pass another --out" in text
    assert content(here) == before


COMMANDS: dict[str, tuple[list[Any], str]] = {
    "fit": (["fit", "in.csv", "--target", "price", *SMALL, "--out", "out"], "out/model.json"),
    "predict": (["predict", "model", "in.csv", "--out", "out/p.csv"], "out/p.csv"),
    "predict Parquet": (["predict", "model", "in.csv", "--out", "out/p.parquet"], "out/p.parquet"),
    "evaluate": (["evaluate", "model", "in.csv", "--out", "out"], "out/report.txt"),
    "figure1": ([*FIGURE, "--out", "out"], "out/figure1.png"),
}
each_command = pytest.mark.parametrize("command", COMMANDS)


@each_command
def test_what_exists_is_replaced_only_with_force(command: str, here: Path):
    arguments, written = COMMANDS[command]
    run(*arguments)
    before = content(here)
    assert f"{written} exists already; pass --force to replace it, or another --out" in said(run(*arguments, code=2))
    assert content(here) == before
    run(*arguments, "--force")
    assert Path(written).read_bytes()
    assert len(content(here)) == len(before)


@pytest.mark.parametrize("command", ["fit", "predict", "predict Parquet", "evaluate", "figure1"])
def test_what_appears_during_the_work_is_not_replaced(command: str, here: Path, monkeypatch: pytest.MonkeyPatch):
    """Without --force; with it, the last one wins."""
    arguments, written = COMMANDS[command]
    before = {**content(here), "out": "", written: b"precious"}

    def appears(work: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*values: Any, **options: Any) -> Any:
            file.parent.mkdir(exist_ok=True)
            file.write_text("precious")
            return work(*values, **options)

        return watched

    file = here / written
    monkeypatch.setattr("ntkgp.apps.commands.fit_command.fit_named", appears(named.fit_named))
    monkeypatch.setattr(named.NamedModel, "predict", appears(named.NamedModel.predict))
    monkeypatch.setattr("ntkgp.cli.figure.compute", appears(figure.compute))
    text = said(run(*arguments, code=1))
    assert f"{written} was created during the work, and is not replaced" in text
    assert "--force" in text
    assert {
        name: bytes_ for name, bytes_ in content(here).items() if not re.search(r"report\.|figure1\.", name) or name == written
    } == before
    run(*arguments, "--force")
    assert file.read_bytes() != b"precious"


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
def test_a_path_that_begins_with_a_tilde(kind: str, here: Path, monkeypatch: pytest.MonkeyPatch):
    """The shell has replaced those that mean the home folder; polars would do it, too."""
    monkeypatch.setenv("HOME", str(here))
    (here / "~").mkdir()
    table = f"~/in.{kind}"
    houses(7).write_parquet(here / table) if kind == "parquet" else houses(7).write_csv(
        here / table, separator="\t" if kind == "tsv" else ","
    )
    run("predict", "model", table, "--out", f"~/p.{'csv' if kind == 'tsv' else kind}")
    read = pl.read_parquet if kind == "parquet" else pl.read_csv
    assert len(read(here / "~" / f"p.{'csv' if kind == 'tsv' else kind}")) == 7


def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ntkgp.apps.commands.fit_command.fit_named", too_late)
    monkeypatch.setattr(named.NamedModel, "predict", too_late)
    monkeypatch.setattr(figure, "compute", too_late)


def too_late(*_: Any, **__: Any) -> None:
    raise AssertionError("the work has begun")


@each_command
def test_a_name_that_is_not_unicode_is_known_before_the_work(command: str, here: Path, monkeypatch: pytest.MonkeyPatch):
    """Neither polars nor a terminal takes it."""
    no_work(monkeypatch)
    before = content(here)
    text = said(run(*COMMANDS[command][0][:-1], os.fsdecode(b"caf\xe9/") + COMMANDS[command][0][-1], code=2))
    assert r"caf\xe9/out" in text
    assert "is not UTF-8; rename" in text
    assert content(here) == before


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_in_a_folder_whose_name_is_not_unicode(kind: str, here: Path, monkeypatch: pytest.MonkeyPatch):
    folder = os.fsdecode(b"caf\xe9")
    shutil.copytree(here, here / folder)
    for command in ("predict", "evaluate"):
        assert "is not UTF-8; rename" in said(run(command, "model", f"{folder}/in.{kind}", code=2))
    monkeypatch.chdir(folder)
    run("predict", "model", f"in.{kind}", "--out", f"p.{kind}")
    assert (here / folder / f"p.{kind}").stat().st_size


@each_command
def test_other_files_stay(command: str, here: Path):
    arguments, _ = COMMANDS[command]
    (here / "out").mkdir()
    (here / "out" / "notes.txt").write_text("precious")
    run(*arguments)
    assert (here / "out" / "notes.txt").read_text() == "precious"
    assert not [name for name in content(here) if "/." in name]


def full(error: Exception, *arguments: Any, **_: Any) -> None:
    """A disk that gets full in the middle of a file."""
    for file in arguments:
        if isinstance(file, io.IOBase):
            file.write(b"half")
    raise error


@each_command
@pytest.mark.parametrize("existing", [False, True])
def test_a_failed_write_leaves_no_half_file(command: str, existing: bool, here: Path, monkeypatch: pytest.MonkeyPatch):
    arguments, _ = COMMANDS[command]
    (here / "out").mkdir()
    if existing:
        run(*arguments)
    before = content(here)
    number = errno.ENOSPC
    system, message = OSError(number, os.strerror(number)), f"{os.strerror(number)} (os error {number})"
    monkeypatch.setattr(pl.DataFrame, "write_csv", lambda _, path: full(OSError(message), path))  # as polars raises it
    monkeypatch.setattr(pl.DataFrame, "write_parquet", lambda _, path: full(ComputeError(f"parquet: {message}"), path))
    monkeypatch.setattr(Report, "plot", lambda _: full(system))
    monkeypatch.setattr(figure.Figure1, "to_json", lambda _: full(system))
    monkeypatch.setattr(json := table_folder.json, "dumps", json.dumps if command != "fit" else lambda *_, **__: full(system))
    text = said(run(*arguments, "--force", code=1))
    assert "No space left on device" in text
    assert "os error" not in text
    assert content(here) == before


WRONG: dict[str, tuple[Callable[[], object], str, str, int]] = {
    "a folder below a file": (lambda: Path("file").touch(), "file/out", "file is not a folder", 2),
    "far below a file": (lambda: Path("file").touch(), "file/a/b/out", "file is not a folder", 2),
    "below a broken link": (lambda: os.symlink("nowhere", "link"), "link/out", "link is not a folder", 2),
    "a folder where nothing can be created": (lambda: None, "/proc/ntkgp/out", "cannot write /proc/ntkgp/out", 1),
}


@pytest.mark.parametrize("command", ["fit", "predict", "evaluate", "figure1"])
@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_place_is_known_before_the_work(what: str, command: str, here: Path, monkeypatch: pytest.MonkeyPatch):
    prepare, out, words, code = WRONG[what]
    prepare()
    before = content(here)
    no_work(monkeypatch)
    out = f"{out}/p.csv" if command == "predict" else out
    text = said(run(*COMMANDS[command][0][:-1], out, code=code))
    assert words in text
    assert content(here) == before


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("nowhere"), lambda path: path.write_text("mine")])
def test_something_else_in_the_place_of_the_lock_is_known_before_the_work(
    make: Callable[[Path], object], here: Path, monkeypatch: pytest.MonkeyPatch
):
    (here / "out").mkdir()
    make(here / "out" / ".ntkgp.lock")
    before = content(here)
    monkeypatch.setattr("ntkgp.apps.commands.fit_command.fit_named", too_late)
    assert "out/.ntkgp.lock is needed as a lock, but ntkgp did not create" in said(run(*COMMANDS["fit"][0], code=1))
    assert content(here) == before


NO_FILE: dict[str, tuple[Callable[[], object], str, str]] = {
    "a folder": (lambda: os.mkdir("out.csv"), "out.csv", "out.csv must be a plain file or not exist yet"),
    "a link to nothing": (lambda: os.symlink("nowhere", "out.csv"), "out.csv", "out.csv must be a plain file or not exist yet"),
    "a link to another file": (lambda: os.symlink("in.parquet", "out.csv"), "out.csv", "got a link"),
    "another kind": (lambda: None, "out.xlsx", "out.xlsx must end in .csv or .parquet, got .xlsx"),
    "no kind": (lambda: None, "out", "out must end in .csv or .parquet, got no extension"),
}


@pytest.mark.parametrize("what", NO_FILE)
def test_a_wrong_file_is_known_before_the_work(what: str, here: Path, monkeypatch: pytest.MonkeyPatch):
    prepare, out, words = NO_FILE[what]
    prepare()
    before = content(here)
    monkeypatch.setattr(named.NamedModel, "predict", too_late)
    assert words in said(run("predict", "model", "in.csv", "--out", out, "--force", code=2))
    assert content(here) == before


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_a_wrong_level_is_known_before_the_work(command: str, here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(table_folder, "load", too_late)
    text = said(run(command, "model", "in.csv", "--level", "95", code=2))
    assert "level must be between 0 and 1, got 95.0; write 95 % as 0.95" in text


def test_a_folder_is_created_when_there_is_something_to_write(here: Path):
    before = content(here)
    run("predict", "model", "none.csv", "--out", "new/folder/p.csv", code=2)
    assert content(here) == before
    run("predict", "model", "in.csv", "--out", "new/folder/p.csv")
    assert len(pl.read_csv("new/folder/p.csv")) == 5


def test_targets_whose_names_look_the_same_in_a_path(here: Path):
    table = houses(20).select("size", pl.col("price").alias("y/1"), pl.col("rent").alias("y 1"))
    table.write_csv("two.csv")
    run("fit", "two.csv", "--target", "y/1", "--target", "y 1", "--out", "both", *SMALL)
    run("evaluate", "both", "two.csv", "--out", "report")
    assert sorted(path.name for path in Path("report").iterdir()) == ["y_1", "y_1-2"]
    assert len(list(Path("report").glob("*/report.json"))) == 2
