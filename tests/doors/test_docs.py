"""Everything shown is run: docstrings, the README, the examples."""

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

MODULES = ["ntkgp", *(info.name for info in pkgutil.walk_packages(ntkgp.__path__, "ntkgp."))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


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


@pytest.mark.parametrize("name", ntkgp.__all__)
def test_public_names_have_a_docstring_with_an_example(name: str):
    documented = getattr(ntkgp, name).__doc__ or ""
    assert documented.strip()
    if not (isinstance(getattr(ntkgp, name), type) and issubclass(getattr(ntkgp, name), Exception)):
        assert "Example:" in documented
        assert ">>> " in documented


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
