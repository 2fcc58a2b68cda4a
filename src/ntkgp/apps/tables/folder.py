"""Save and load a table model: a folder with two safetensors files and a JSON file. Loading executes no code from it."""

import hashlib
import json
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
from ntkgp.storage.replace import check_plain, replacing
from ntkgp.storage.state import State

FORMAT, VERSION = "ntkgp table model", 1
FACTS, NETWORK, POSTERIOR = "model.json", "network.safetensors", "posterior.safetensors"


def save(named: NamedModel, folder: Path) -> None:
    """Write the model into a folder, which is created if it does not exist: weights, posterior, and the rest as JSON.

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
    for name in (NETWORK, POSTERIOR, FACTS):  # check all three before replacing any of them
        check_plain(folder / name)
    model, columns = named.model, named.columns
    write(folder / NETWORK, "network", State(tensors=dict(model.module.state_dict())))
    model.posterior.save(folder / POSTERIOR)
    facts = {
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
        "files": {name: _sha256(folder / name) for name in (NETWORK, POSTERIOR)},
    }
    with replacing(folder / FACTS) as temporary:
        temporary.write_text(json.dumps({"sha256": _signature(facts), **facts}, indent=1) + "\n", encoding="utf-8")


def load(folder: Path, device: str = "cpu") -> NamedModel:
    """Load a model written by :func:`save`; raise a TableError if it is damaged or its files belong to different models."""
    facts = _read_facts(folder)
    try:
        return _model(folder, facts, device)
    except TableError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        # The sha256 matches, but `save` did not write this content.
        raise TableError(f"{folder} cannot be loaded: {error}") from error


def _model(folder: Path, facts: dict[str, Any], device: str) -> NamedModel:
    for name in (NETWORK, POSTERIOR):
        _check_inside(folder, name)
        if not (folder / name).is_file():
            raise TableError(f"{folder} is not a complete model: {name} is missing; copy the whole folder, or fit again")
        if _sha256(folder / name) != facts["files"][name]:
            raise TableError(f"{folder / name} is damaged, or belongs to another model than {FACTS}; use another copy")
    _, weights = read(folder / NETWORK, torch.device("cpu"))
    module = rebuild(facts["network"], sum(t.numel() for t in weights.tensors.values())).to(State(facts=facts).dtype("dtype"))
    module.load_state_dict(weights.tensors)
    module = module.to(device)
    posterior = posterior_files.load(folder / POSTERIOR, module)
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
    _check_inside(folder, FACTS)
    if not path.is_file():
        raise TableError(f"there is no model in {folder}: {FACTS} is missing; create it with ntkgp fit --out {folder}")
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(facts, dict):
            raise ValueError("expected an object")
    except (ValueError, RecursionError) as error:
        raise TableError(f"{path} is damaged: {error}") from error
    if facts.get("format") != FORMAT or facts.get("version") != VERSION:
        raise TableError(
            f"{path} is {facts.get('format')!r} of version {facts.get('version')!r}; expected {FORMAT!r} of version {VERSION}: "
            "update ntkgp, or fit again"
        )
    if facts.pop("sha256", None) != _signature(facts):
        raise TableError(f"{path} is damaged: its content does not match its sha256; use another copy, or fit again")
    return facts


def _check_inside(folder: Path, name: str) -> None:
    """Refuse symbolic links: they could point anywhere outside the folder."""
    if (folder / name).is_symlink():
        raise TableError(f"{folder / name} is a symbolic link, which is not allowed in a model; copy the file itself")


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
