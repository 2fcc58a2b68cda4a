"""Results on disk: one JSON-lines file per benchmark, or per study and data set.

A line is an environment, ``{"environment": {...}}``, or a run, ``{"environment": 0, ...}``. The number of a run says which
environment line of its file it belongs to, counted from 0. Several processes may append to one file at the same time.
"""

import fcntl
import json
import os
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ntkgp.apps.figure1.figure import environment

RESULTS = Path(__file__).parent / "results"
Record = dict[str, Any]


def _current(packages: Iterable[str]) -> Record:
    """Versions and threads of this process, with the versions of other packages if any are named."""
    found = {name: _version(name) for name in packages}
    return {**environment(), **({"packages": found} if found else {})}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def read(path: Path) -> list[Record]:
    """All runs in a file, each with its environment; none if there is no file."""
    return _parse(path.read_bytes())[1] if path.exists() else []


def append(path: Path, record: Record, keys: Iterable[str] = (), packages: Iterable[str] = ()) -> bool:
    """Append a run, unless the file has one with the same values of ``keys``; returns whether it was appended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        file.seek(0)
        content = file.read()
        environments, runs = _parse(content)
        keys = list(keys)
        if keys and any(all(run[key] == record[key] for key in keys) for run in runs):
            return False
        file.truncate(content.rfind(b"\n") + 1)  # drop the half line of a process that was killed
        file.write(_lines(record, environments, _current(packages)))
    return True


def save(name: str, record: Record, folder: Path = RESULTS, packages: Iterable[str] = ()) -> Path:
    """Write a benchmark's only run to ``folder/name.jsonl`` in place of the one before."""
    folder.mkdir(parents=True, exist_ok=True)
    path, new = folder / f"{name}.jsonl", folder / f"{name}.{os.getpid()}.new"
    new.write_bytes(_lines(record, [], _current(packages)))
    os.replace(new, path)
    return path


def load(name: str, folder: Path = RESULTS) -> Record:
    """The run that :func:`save` wrote, with its environment."""
    (record,) = read(folder / f"{name}.jsonl")
    return record


def _lines(record: Record, known: list[Record], current: Record) -> bytes:
    """The line of a run, preceded by its environment if the file does not have that yet."""
    new = [] if current in known else [{"environment": current}]
    number = len(known) if new else known.index(current)
    return b"".join(json.dumps(line).encode() + b"\n" for line in (*new, {"environment": number, **record}))


def _parse(content: bytes) -> tuple[list[Record], list[Record]]:
    """Environments, and runs with theirs; a last line without its newline is ignored."""
    lines = [json.loads(line) for line in content.split(b"\n")[:-1]]
    environments = [line["environment"] for line in lines if isinstance(line["environment"], dict)]
    runs = [line for line in lines if isinstance(line["environment"], int)]
    return environments, [{**run, "environment": environments[run["environment"]]} for run in runs]
