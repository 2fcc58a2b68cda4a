"""What import-linter does not check: cycles inside a room, hidden imports, what importing the library brings along."""

import ast
import graphlib
import subprocess
import sys

from tests.support.helpers import ROOT

SOURCES = {
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "src" / "ntkgp").rglob("*.py"))
}


def imports_of(name: str) -> set[str]:
    """Modules of the library that a module imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(SOURCES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import"
            assert node.module is not None
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return {module for module in found if module in SOURCES and module != "ntkgp"}


def test_no_module_imports_itself_by_a_detour():
    graph = {name: imports_of(name) for name in SOURCES}
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(SOURCES)


def test_no_import_is_hidden_in_a_function():
    """Except at the rim, where an optional dependency may be asked for late."""
    hidden = []
    for name, path in SOURCES.items():
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                inner = [node for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)]
                hidden += [f"{name}.{function.name}" for node in inner if "ntkgp" in ast.unparse(node)]
    assert hidden == []


def test_the_library_does_not_import_its_extras():
    code = "import sys, ntkgp; print([m for m in ('matplotlib', 'typer', 'rich', 'scipy', 'sklearn') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_python_s_own_random_state_is_never_used():
    for name, path in SOURCES.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        plain = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        assert "random" not in plain | {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}, name
