"""``python -O`` drops every assert: the library must behave the same without them."""

import ast
import json
import os
import subprocess
import sys

import pytest

from tests.reliability.bad_input.outcomes import outcomes
from tests.support.helpers import ROOT

SOURCES = sorted((ROOT / "src" / "ntkgp").rglob("*.py"))


@pytest.mark.usefixtures("unchecked")
def test_the_same_errors_without_asserts():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-O", "-m", "tests.reliability.bad_input.outcomes"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600, env=environment, cwd=ROOT)
    found, expected = json.loads(done.stdout.splitlines()[-1]), outcomes()
    assert found["optimize"] == 1
    assert {what: said for what, said in found["said"].items() if said != expected[what]} == {}
    assert found["said"].keys() == expected.keys()
    assert len(expected) >= 250
    kinds = {said.split(":")[0] for said in expected.values()}
    assert kinds == {"ValueError", "TypeError", "FileNotFoundError"}


def narrows(test: ast.expr) -> bool:
    """Whether an assert only tells the type checker a type: ``... is not None`` or ``isinstance(...)``."""
    if isinstance(test, ast.Compare):
        return isinstance(test.ops[0], ast.IsNot) and isinstance(test.left, ast.Name | ast.Attribute)
    return isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id == "isinstance"


def test_asserts_only_tell_types():
    """A message would be meant for a user, and any other condition would be a check."""
    checks = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assert) and (node.msg is not None or not narrows(node.test)):
                checks.append(f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}")
    assert checks == []


def test_nothing_depends_on_debug():
    for path in SOURCES:
        names = {node.id for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Name)}
        assert "__debug__" not in names, path
