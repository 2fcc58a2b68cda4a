"""Save and load a table model: a folder with a JSON file and two safetensors files. Loading executes no code from it.

The JSON names the other two, which have new names in every save, and is replaced last. So the folder holds one complete model
at any time, even if a save fails or is killed.
"""

import hashlib
import json
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ntkgp.apps.tables.columns import BOOLEAN, CATEGORY, NUMBER, Column, TableError
from ntkgp.apps.tables.model import TableModel
from ntkgp.apps.tables.named import NamedColumns, NamedModel
from ntkgp.apps.tables.scaling import Scaling
from ntkgp.networks.description import describe, rebuild
from ntkgp.posterior import load as posterior_files
from ntkgp.storage.file import read, write
from ntkgp.storage.lock import folder_in_use
from ntkgp.storage.replace import check_plain, replacing_files
from ntkgp.storage.state import State

FORMAT, VERSION, VERSIONS = "ntkgp table model", 2, (1, 2)  # version 1 has files without digits in their names
FACTS, NETWORK, POSTERIOR = "model.json", "network", "posterior"
ATTEMPTS = 20  # loads of a folder that is replaced again and again


def save(named: NamedModel, folder: Path, replace: bool = True) -> None:
    """Write the model into a folder, which is created if it does not exist: weights, posterior, and the rest as JSON.

    Only the files of the old model are deleted, as its JSON names them. If there is a JSON and `replace` is false, raise
    FileExistsError.

    Example:
        >>> import polars as pl, tempfile
        >>> from ntkgp.apps.tables.named import fit_named
        >>> from ntkgp.apps.tables.options import TableOptions
        >>> table = pl.DataFrame({"hours": [1.0, 2.0, 3.0], "price": [10.0, 22.0, 30.0]})
        >>> columns = NamedColumns((Column("hours", "number"),), ("price",))
        >>> model = fit_named(table, columns, TableOptions(width=8, steps=5, starts=1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(model, Path(folder))
        ...     again = load(Path(folder))
        >>> bool((again.predict(table).mean == model.predict(table).mean).all())
        True
    """
    folder.mkdir(parents=True, exist_ok=True)
    check_plain(folder / FACTS)
    token = secrets.token_hex(8)
    files = {part: f"{part}-{token}.safetensors" for part in (NETWORK, POSTERIOR)}
    with folder_in_use(folder, "another save", wait=True):
        old, new = _named(folder), {*files.values()}
        try:
            with replacing_files(folder, replace, last=FACTS) as temporary:
                write(temporary / files[NETWORK], NETWORK, State(tensors=dict(named.model.module.state_dict())))
                named.model.posterior.save(temporary / files[POSTERIOR])
                facts = _facts(named) | {"files": {name: _sha256(temporary / name) for name in files.values()}}
                text = json.dumps({"sha256": _signature(facts), **facts}, indent=1) + "\n"
                (temporary / FACTS).write_text(text, encoding="utf-8")
        finally:
            current = _named(folder)
            with suppress(OSError):
                for name in (old if current == new else new) - current:
                    (folder / name).unlink(missing_ok=True)


def _facts(named: NamedModel) -> dict[str, Any]:
    """What the JSON file holds, but for the files."""
    model, columns = named.model, named.columns
    return {
        "format": FORMAT,
        "version": VERSION,
        "columns": [asdict(column) for column in columns.features],
        "targets": columns.targets,
        "ignored": columns.ignored,
        "inputs": _listed(model.inputs),
        "outputs": _listed(model.targets),
        "noise": {
            "variances": None if model.noise_var is None else model.noise_var.tolist(),
            "group": None if named.group is None else asdict(named.group),
            "columns": columns.noise,
        },
        "network": describe(model.module),
        "dtype": str(next(model.module.parameters()).dtype).removeprefix("torch."),
        "fitted": model.fitted,
    }


def load(folder: Path, device: str = "cpu") -> NamedModel:
    """Load a model written by :func:`save`; raise a TableError if it is damaged or its files belong to different models."""
    facts = _read_facts(folder)
    for _ in range(ATTEMPTS):
        try:
            return _model(folder, facts, device)
        except (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
            before, facts = _signature(facts), _read_facts(folder)
            if _signature(facts) != before:  # another process has replaced the model meanwhile
                continue
            if isinstance(error, TableError | OSError):
                raise
            # The sha256 matches, but `save` did not write this content.
            raise TableError(f"{folder} cannot be loaded: {error}") from error
    raise TableError(f"{folder} is being replaced by another process again and again; try again when that process has ended")


def _model(folder: Path, facts: dict[str, Any], device: str) -> NamedModel:
    paths = {part: folder / _file(facts["files"], part) for part in (NETWORK, POSTERIOR)}
    for path in paths.values():
        _check_inside(path)
        if not path.is_file():
            raise TableError(f"{folder} is not a complete model: {path.name} is missing; copy the whole folder, or fit again")
        if _sha256(path) != facts["files"][path.name]:
            raise TableError(f"{path} is damaged, or belongs to another model than {FACTS}; use another copy")
    _, weights = read(paths[NETWORK], torch.device("cpu"))
    module = rebuild(facts["network"], sum(t.numel() for t in weights.tensors.values())).to(State(facts=facts).dtype("dtype"))
    module.load_state_dict(weights.tensors)
    module = module.to(device)
    posterior = posterior_files.load(paths[POSTERIOR], module)
    noise, variances = facts["noise"], facts["noise"]["variances"]
    group = None if noise["group"] is None else _column(noise["group"])
    columns = NamedColumns(
        features=tuple(_column(column) for column in facts["columns"]),
        targets=tuple(facts["targets"]),
        ignored=tuple(facts["ignored"]),
        noise=tuple(noise["columns"]),
        group=None if group is None else group.name,
    )
    model = TableModel(
        inputs=_scaling(facts["inputs"]),
        targets=_scaling(facts["outputs"]),
        module=module,
        posterior=posterior,
        noise_var=None if variances is None else torch.tensor(variances, dtype=torch.float64),
        fitted=facts["fitted"],
    )
    named = NamedModel(columns, model, group)
    _check_together(named)
    return named


def _check_together(named: NamedModel) -> None:
    """Check that columns, units, noise and posterior have matching sizes, and that variances are positive."""
    model, columns = named.model, named.columns
    problem, C, variances = model.posterior.problem, len(columns.targets), model.noise_var
    rows = 1 if named.group is None else len(named.group.categories) + 1
    sizes = {
        "features": (sum(column.width for column in columns.features), len(model.inputs.center), problem.data.x.shape[1]),
        "targets": (C, len(model.targets.center), problem.outputs),
        "noise": ((rows, C) if variances is not None else C,
                  tuple(variances.shape) if variances is not None else len(columns.noise)),
    }  # fmt: skip
    for what, found in sizes.items():
        if len(set(found)) > 1:
            raise TableError(f"the parts of the model do not match: its {what} have sizes {found}")
    if variances is not None and not bool((torch.isfinite(variances) & (variances > 0)).all()):
        raise TableError("the noise variances of the model must be positive and finite")
    names = [*columns.targets, *columns.ignored, *columns.noise, *(column.name for column in columns.features)]
    if not all(isinstance(name, str) for name in names) or not isinstance(model.fitted, dict):
        raise TableError("the column names of the model must be texts")


def _read_facts(folder: Path) -> dict[str, Any]:
    path = folder / FACTS
    _check_inside(path)
    if not path.is_file():
        raise TableError(f"there is no model in {folder}: {FACTS} is missing; create it with ntkgp fit --out {folder}")
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(facts, dict):
            raise ValueError("expected an object")
    except (ValueError, RecursionError) as error:
        raise TableError(f"{path} is damaged: {error}") from error
    if facts.get("format") != FORMAT or facts.get("version") not in VERSIONS:
        raise TableError(
            f"{path} is {facts.get('format')!r} of version {facts.get('version')!r}; expected {FORMAT!r} of version "
            f"{VERSIONS[0]} or {VERSIONS[1]}: update ntkgp, or fit again"
        )
    if facts.pop("sha256", None) != _signature(facts):
        raise TableError(f"{path} is damaged: its content does not match its sha256; use another copy, or fit again")
    return facts


def _file(names: Iterable[str], part: str) -> str:
    """The one of these names that belongs to a part of the model. No other file is read, whatever the JSON says."""
    found = [name for name in names if re.fullmatch(rf"{part}(-[0-9a-f]{{16}})?\.safetensors", name)]
    if len(found) != 1:
        raise TableError(f"{FACTS} must name one {part} file, got {found}")
    return found[0]


def _named(folder: Path) -> set[str]:
    """The files that the JSON in a folder names; none if there is no model."""
    try:
        files = _read_facts(folder)["files"]
        return {_file(files, part) for part in (NETWORK, POSTERIOR)}
    except (LookupError, OSError, TypeError, ValueError):
        return set()


def _check_inside(path: Path) -> None:
    """Refuse symbolic links: they could point anywhere outside the folder."""
    if path.is_symlink():
        raise TableError(f"{path} is a symbolic link, which is not allowed in a model; copy the file itself")


def _signature(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    sha = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            sha.update(block)
    return sha.hexdigest()


def _listed(scaling: Scaling) -> dict[str, list[float]]:
    return {"center": scaling.center.tolist(), "scale": scaling.scale.tolist()}


def _scaling(lists: dict[str, list[float]]) -> Scaling:
    center, scale = (torch.tensor(lists[name], dtype=torch.float64) for name in ("center", "scale"))
    sound = torch.isfinite(center).all() and torch.isfinite(scale).all() and (scale > 0).all()
    if center.ndim != 1 or center.shape != scale.shape or not sound:
        raise TableError(f"a scaling must have equally many finite centers and positive scales, got {lists!r}")
    return Scaling(center, scale)


def _column(facts: dict[str, Any]) -> Column:
    column = Column(facts["name"], facts["kind"], tuple(facts["categories"]))
    if column.kind not in (NUMBER, BOOLEAN, CATEGORY) or not all(isinstance(c, str) for c in (column.name, *column.categories)):
        raise TableError(f"a column must have a name, a kind and categories of texts, got {facts!r}")
    return column
