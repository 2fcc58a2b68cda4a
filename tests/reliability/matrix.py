"""The tests under other versions of torch and Python, each pair in an environment of its own.

    python tests/reliability/matrix.py 2.6:3.10 2.11:3.12 2.13:3.13 [-- arguments of pytest]

Versions of Python that are not on this machine are skipped, and said to be. What is installed is what constraints.txt pins,
save torch. Torch's wheels on PyPI bring gigabytes of CUDA: with ``PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu``
there are smaller ones, and with ``--without-cuda`` the wheel of PyPI is installed alone, its CUDA libraries replaced by
stand-ins (tests/support/cuda_stand_ins.py), which is enough for a CPU.
"""

import argparse
import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAIRS = ["2.6:3.10", "2.11:3.11", "2.11:3.12", "2.13:3.11", "2.13:3.12", "2.13:3.13"]
LEFT_OUT = ("torch", "botorch", "ntkgp", "furo", "myst", "sphinx", "pyright", "ruff", "pre-commit", "import-linter")
BOTORCH = ["botorch", "gpytorch", "linear_operator", "pyro-ppl", "pyro-api", "multipledispatch", "opt_einsum"]
BOTORCH += ["pyre_extensions", "typing-inspect", "mypy_extensions"]  # by name: resolving them would fetch all of torch
BESIDE = ["filelock", "fsspec", "jinja2", "networkx", "setuptools<82", "sympy", "typing_extensions"]  # what torch needs itself


def interpreter(version: str) -> str | None:
    """A Python of this version: one of pyenv's, or on the path; pyenv also puts names there that do not run."""
    kept = sorted(glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/python")))
    for one in (*reversed(kept), shutil.which(f"python{version}")):
        if one and subprocess.run([one, "--version"], capture_output=True, check=False).returncode == 0:
            return one
    return None


def environment(torch: str, python: str, home: Path, without_cuda: bool) -> str:
    """An environment with this torch; its interpreter."""
    subprocess.run([python, "-m", "venv", str(home)], check=True)
    inside, pins = str(home / "bin" / "python"), home / "constraints.txt"
    lines = (ROOT / "constraints.txt").read_text().splitlines(keepends=True)
    pins.write_text("".join(line for line in lines if not line.startswith(("torch=", "sympy="))))
    install = [inside, "-m", "pip", "install", "-q", "-c", str(pins)]
    if not without_cuda:
        subprocess.run([*install, f"torch=={torch}.*", "-e", f"{ROOT}[dev]"], check=True)
        return inside
    subprocess.run([*install, "--no-deps", f"torch=={torch}.*", "-e", str(ROOT)], check=True)
    subprocess.run([*install, *BESIDE, *requirements(inside)], check=True)
    if said(inside, "import sys; print(sys.version_info >= (3, 11))") == "True":  # BoTorch has left Python 3.10 behind
        subprocess.run([*install, "--no-deps", *BOTORCH], check=True)
    place = said(inside, "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])")
    subprocess.run([sys.executable, str(ROOT / "tests" / "support" / "cuda_stand_ins.py"), f"{place}/lib"], check=True)
    return inside


def requirements(inside: str) -> list[str]:
    """What the tests need, save torch and what would fetch all of it."""
    listed = said(inside, "import importlib.metadata as m; print('\\n'.join(m.requires('ntkgp')))").splitlines()
    return [name for line in listed if not (name := line.partition(";")[0]).startswith(LEFT_OUT)]


def said(inside: str, code: str) -> str:
    return subprocess.run([inside, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    """Run every pair; the number of those that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="*", default=PAIRS, help="torch:python")
    parser.add_argument("--folder", type=Path, default=ROOT / ".matrix", help="where the environments are made")
    parser.add_argument("--without-cuda", action="store_true", help="stand-ins for the CUDA libraries of torch's wheel")
    own, options = sys.argv[1:], []
    if "--" in own:
        own, options = own[: own.index("--")], own[own.index("--") + 1 :]
    chosen, results = parser.parse_args(own), {}
    options = options or ["-q", "-n", "auto", "--ignore", "tests/apps/explorer/browser"]
    for pair in chosen.pairs:
        torch, _, version = pair.partition(":")
        python = interpreter(version)
        if python is None:
            results[pair] = "skipped: no such Python here"
            continue
        try:
            inside = environment(torch, python, chosen.folder / pair.replace(":", "-"), chosen.without_cuda)
        except subprocess.CalledProcessError as error:
            results[pair] = f"skipped: {' '.join(map(str, error.cmd))} failed"
            continue
        variables = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
        done = subprocess.run([str(inside), "-m", "pytest", *options], cwd=ROOT, env=variables, check=False)
        results[pair] = "passed" if done.returncode == 0 else "FAILED"
    for pair, result in results.items():
        torch, _, version = pair.partition(":")
        print(f"torch {torch}, Python {version}: {result}")
    return sum(result == "FAILED" for result in results.values())


if __name__ == "__main__":
    sys.exit(main())
