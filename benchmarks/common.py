"""What every benchmark does: write one JSON with its environment, read it back for the report."""

import json
from pathlib import Path
from typing import Any

from ntkgp.figure1 import environment

RESULTS = Path(__file__).parent / "results"


def save(name: str, record: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write ``folder/name.json`` with the environment beside the record."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"environment": environment(), **record}, indent=1) + "\n")
    return path


def read(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """What :func:`save` wrote."""
    return json.loads((folder / f"{name}.json").read_text())
