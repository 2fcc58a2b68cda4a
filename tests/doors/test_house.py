"""The house rules of docs/architecture.md that no linter knows: small files, rooms that are not crowded, one door."""

import ast
import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import ntkgp
from tests.support.helpers import ROOT

PACKAGE = ROOT / "src" / "ntkgp"
FILES = sorted(PACKAGE.rglob("*.py"))
FOLDERS = sorted({path.parent for path in FILES})
ROOMS = [folder for folder in FOLDERS if folder != PACKAGE]
# Their arguments are the user's: the functions of `__all__`, the estimators and models, and the commands.
DOORS = {"sklearn.py", "cli.py", "apps/commands/fit_command.py", "apps/commands/predict_command.py",
         "apps/commands/evaluate_command.py", "apps/botorch/model.py", "apps/bandits.py", "apps/select.py"}  # fmt: skip
PLOTS = "apps/plots/"


def name_of(path: object) -> str:
    return str(path).removeprefix(f"{PACKAGE}/")


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_file_holds_more_than_300_lines(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 300


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_no_room_is_crowded(folder):
    assert len(list(folder.glob("*.py"))) <= 12


@pytest.mark.parametrize("room", ROOMS, ids=name_of)
def test_every_room_says_what_lives_there(room):
    doc = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8")))
    assert doc is not None
    assert len(doc) > 20


def test_the_front_door_is_narrow():
    assert len(ntkgp.__all__) <= 27
    assert sorted(set(ntkgp.__all__)) == sorted(ntkgp.__all__)
    assert all(hasattr(ntkgp, name) for name in ntkgp.__all__)


def test_no_function_hides_its_module():
    """``ntkgp.a.b`` is the module wherever there is one: no package re-exports a name that one of its modules has."""
    hidden = []
    for found in pkgutil.walk_packages([str(PACKAGE)], "ntkgp."):
        if found.name == "ntkgp.__main__" or "botorch" in found.name:  # BoTorch may be missing
            continue
        module, (parent, _, name) = importlib.import_module(found.name), found.name.rpartition(".")
        if getattr(importlib.import_module(parent), name, module) is not module:
            hidden.append(found.name)
    assert hidden == []


def many_arguments() -> Iterator[str]:
    """Functions of more than seven arguments that are neither public nor a class to be filled in."""
    for path in FILES:
        name = name_of(path)
        if name in DOORS or name.startswith(PLOTS):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name not in ntkgp.__all__:
                a = node.args
                count = len([*a.posonlyargs, *a.args, *a.kwonlyargs])
                count -= bool(a.args) and a.args[0].arg in ("self", "cls")
                public_init = node.name == "__init__" and name.startswith("networks/")
                if count > 7 and not public_init:
                    yield f"{name}:{node.lineno} {node.name} takes {count}"


def test_internal_functions_take_at_most_seven_arguments():
    # `Tuned.fit` is `fit` with what was found.
    assert [found for found in many_arguments() if "tuning/result.py" not in found] == []
