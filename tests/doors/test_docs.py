"""Everything shown is run: docstrings, the README, the examples."""

import ast
import doctest
import importlib
import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import ntkgp
from tests.support.helpers import ROOT

SOURCE = ROOT / "src" / "ntkgp"
MODULES = ["ntkgp", *(info.name for info in pkgutil.walk_packages(ntkgp.__path__, "ntkgp."))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = ("ntkgp.cli", "ntkgp.__main__")  # no names to import
ROOMS = ["ntkgp", *(info.name for info in pkgutil.iter_modules(ntkgp.__path__, "ntkgp.") if info.name not in COMMANDS)]


def public_names() -> list[str]:
    """`room.name` of every name in the `__all__` of the package, its rooms and its doors."""
    found = []
    for room in ROOMS:
        path = SOURCE.joinpath(*room.split(".")[1:])
        source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
        tree = ast.parse(source)
        listed = [
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        ]
        # A door that defines its classes itself may do without a list.
        own = [node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
        found += [f"{room}.{name}" for name in (listed[0] if listed else own)]
    return found


PUBLIC = public_names()


def skip_without_botorch(source: Path) -> None:
    """BoTorch needs Python 3.11; what imports it is not run before."""
    imports = re.search(r"^(import|from) botorch", source.read_text(encoding="utf-8"), re.MULTILINE)
    if imports and sys.version_info < (3, 11):
        pytest.skip("BoTorch needs Python 3.11")


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str):
    found = importlib.util.find_spec(name)
    assert found is not None
    assert found.origin is not None
    skip_without_botorch(Path(found.origin))
    with warnings.catch_warnings():  # an example may turn warnings into errors
        failed = doctest.testmod(importlib.import_module(name)).failed
    assert failed == 0


def public_object(name: str) -> object:
    room, _, attribute = name.rpartition(".")
    if room == "ntkgp.botorch" and sys.version_info < (3, 11):
        pytest.skip("BoTorch needs Python 3.11")
    return getattr(importlib.import_module(room), attribute)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_have_a_docstring_with_an_example(name: str):
    value = public_object(name)
    if isinstance(value, str):  # a colour
        return
    documented = value.__doc__ or ""
    assert documented.strip()
    if not (isinstance(value, type) and issubclass(value, Exception)):
        assert "Example:" in documented
        assert ">>> " in documented


def test_the_rooms_are_found():
    assert {"ntkgp.fit", "ntkgp.networks.Sine", "ntkgp.plots.spectrum", "ntkgp.sklearn.NTKGPRegressor"} <= set(PUBLIC)
    assert [name for name in PUBLIC if name.count(".") == 1] == [f"ntkgp.{name}" for name in ntkgp.__all__]


def api_entries() -> list[str]:
    """`room.name` of every entry of the API page."""
    text, room, found = (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), "", []
    for line in text.splitlines():
        if line.startswith(".. currentmodule:: "):
            room = line.split()[-1]
        elif re.fullmatch(r"   [A-Za-z_][\w.]*", line):
            found.append(f"{room}.{line.strip()}")
    return found


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_on_the_api_page(name: str):
    """Every name has an entry, or is said to be the same as a name that has one."""
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    colour = isinstance(public_object(name), str) and f"`{name.rpartition('.')[2]}`" in text
    assert name in api_entries() or f"`{name}` is also `" in text or colour


def test_entries_of_the_api_page_are_public():
    listed = api_entries()
    assert len(set(listed)) == len(listed) > 50
    inside = "ntkgp.posterior.trained.posterior.TrainedPosterior.sample_networks"  # a method of what `fit` returns
    assert [name for name in listed if name not in PUBLIC] == [inside]


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_pages_work_as_printed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The blocks of a page are one session, read from top to bottom."""
    skip_without_botorch(page)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    session: dict[str, object] = {"__name__": "page"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a page may show what warns
        for block in blocks(page):
            exec(compile(block, page.name, "exec"), session)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_that_exist(page: Path):
    targets = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_paper_page_names_what_its_files_contain():
    """After each link to a file come the names to look for in it; tests are paths below tests/."""
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    missing, checked = [], 0
    for path, rest in re.findall(r"\]\(\.\./(src/ntkgp/[^)]+\.py)\) ((?:`[^`]+`(?: \([^)]*\))?(?:, )?)+)", text):
        source = (ROOT / path).read_text(encoding="utf-8")
        for name in re.findall(r"`([A-Za-z_.]+)", rest):
            checked += 1
            missing += [f"{path}: {name}" for part in name.split(".") if not re.search(rf"\b{part}\b", source)]
    tests = re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", text)
    missing += [path for path in tests if not (ROOT / "tests" / path).exists() and not (SOURCE / path).exists()]
    assert checked > 30
    assert missing == []


def test_the_architecture_page_names_files_that_exist():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:[a-z_0-9]+/)+(?:[a-z_0-9]+\.py)?)`", text)
    assert len(named) > 50
    assert [path for path in named if not any((base / path).exists() for base in (SOURCE, SOURCE.parent, ROOT))] == []


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.name)
def test_examples_run(script: Path, tmp_path: Path):
    skip_without_botorch(script)
    environment = {**os.environ, "NTKGP_SMALL": "1", "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", str(script)],
        capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=1200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
