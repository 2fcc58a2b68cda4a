"""A table model in a folder: two safetensors files and a JSON that binds them; nothing read from it is executed."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ntkgp import archive, files
from ntkgp.archive import State
from ntkgp.scaling import Scaling
from ntkgp.structure import describe, rebuild
from ntkgp.table_files import Column, TableError
from ntkgp.table_model import Noise, TableModel

FORMAT, VERSION = "ntkgp table model", 1
FACTS, NETWORK, POSTERIOR = "model.json", "network.safetensors", "posterior.safetensors"


def save(model: TableModel, folder: Path) -> None:
    """Write the model into a folder, which is made if need be: weights, posterior, and all else as JSON.

    Example:
        >>> import polars as pl, tempfile
        >>> from ntkgp.table_model import Options, fit_table
        >>> table = pl.DataFrame({"hours": [1.0, 2.0, 3.0], "price": [10.0, 22.0, 30.0]})
        >>> model = fit_table(table, [Column("hours", "number")], ["price"], options=Options(width=8, steps=5, starts=1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(model, Path(folder))
        ...     again = load(Path(folder))
        >>> bool((again.predict(table).mean == model.predict(table).mean).all())
        True
    """
    folder.mkdir(parents=True, exist_ok=True)
    archive.write(folder / NETWORK, "network", State(tensors=dict(model.module.state_dict())))
    model.posterior.save(folder / POSTERIOR)
    noise = model.noise
    facts = {
        "format": FORMAT,
        "version": VERSION,
        "columns": [asdict(column) for column in model.columns],
        "targets": model.targets,
        "ignored": model.ignored,
        "inputs": _listed(model.inputs),
        "outputs": _listed(model.outputs),
        "noise": {
            "variances": None if noise.variances is None else noise.variances.tolist(),
            "group": None if noise.group is None else asdict(noise.group),
            "columns": noise.columns,
        },
        "network": describe(model.module),
        "dtype": str(next(model.module.parameters()).dtype).removeprefix("torch."),
        "fitted": model.fitted,
        "files": {name: _sha256(folder / name) for name in (NETWORK, POSTERIOR)},
    }
    (folder / FACTS).write_text(json.dumps({"sha256": _signature(facts), **facts}, indent=1) + "\n", encoding="utf-8")


def load(folder: Path, device: str = "cpu") -> TableModel:
    """The model that :func:`save` wrote; one that is damaged, or whose files do not belong together, is refused."""
    facts = _read_facts(folder)
    for name in (NETWORK, POSTERIOR):
        if not (folder / name).is_file():
            raise TableError(f"{folder} is not a whole model: {name} is missing; fit it again, or copy all of the folder")
        if _sha256(folder / name) != facts["files"][name]:
            raise TableError(f"{folder / name} is damaged, or belongs to another model than {FACTS}; use another copy")
    try:
        module = rebuild(facts["network"]).to(getattr(torch, facts["dtype"]))
        _, weights = archive.read(folder / NETWORK, torch.device("cpu"))
        module.load_state_dict(weights.tensors)
        module = module.to(device)
        posterior = files.load(folder / POSTERIOR, module)
    except (ValueError, RuntimeError) as error:
        raise TableError(f"{folder} cannot be loaded: {error}") from error
    noise, variances = facts["noise"], facts["noise"]["variances"]
    return TableModel(
        columns=tuple(_column(column) for column in facts["columns"]),
        targets=tuple(facts["targets"]),
        ignored=tuple(facts["ignored"]),
        inputs=_scaling(facts["inputs"]),
        outputs=_scaling(facts["outputs"]),
        noise=Noise(
            None if variances is None else torch.tensor(variances, dtype=torch.float64),
            None if noise["group"] is None else _column(noise["group"]),
            tuple(noise["columns"]),
        ),
        module=module,
        posterior=posterior,
        fitted=facts["fitted"],
    )


def _read_facts(folder: Path) -> dict[str, Any]:
    path = folder / FACTS
    if not path.is_file():
        raise TableError(f"there is no model in {folder}: expected {FACTS} in it, made by ntkgp fit --out {folder}")
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(facts, dict):
            raise ValueError("expected an object")
    except ValueError as error:
        raise TableError(f"{path} is damaged: {error}") from error
    if facts.get("format") != FORMAT or facts.get("version") != VERSION:
        raise TableError(
            f"{path} is {facts.get('format')!r} of version {facts.get('version')!r}; expected {FORMAT!r} of version {VERSION}; "
            "update ntkgp"
        )
    if facts.pop("sha256", None) != _signature(facts):
        raise TableError(f"{path} is damaged: its content is not what its sha256 says; use another copy, or fit again")
    return facts


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
    return Scaling(*(torch.tensor(lists[name], dtype=torch.float64) for name in ("center", "scale")))


def _column(facts: dict[str, Any]) -> Column:
    return Column(facts["name"], facts["kind"], tuple(facts["categories"]))
