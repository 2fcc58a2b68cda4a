"""One safetensors file of tensors and JSON: read back as it was written, or refused.

The JSON stands in the header under "ntkgp". It holds the sha256 of the whole file, taken with 64 zeros in its own place, so no
byte can change unnoticed, not even the padding. Nothing read from a file is executed, and no name in it is used as a path.
"""

import hashlib
import json
import os
from functools import cache
from importlib import metadata
from operator import methodcaller
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_bfloat16
from torch import Tensor

from ntkgp.storage.replace import check_plain, replacing
from ntkgp.storage.state import State

FORMAT = 2
BLANK = "0" * 64  # where the sha256 will stand


def write(path: str | os.PathLike[str], kind: str, state: State) -> None:
    """Write all of it or nothing: into a new file beside `path`, which then takes its place.

    The same state gives the same bytes. A symbolic link is refused: replacing it is as surprising as writing through it.
    """
    target = Path(path)
    check_plain(target)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {target}: there is no folder {target.parent}; create it first")
    tensors, layouts = _flattened(state.tensors)
    about = {
        "sha256": BLANK,
        "format": FORMAT,
        "kind": kind,
        "versions": {"ntkgp": installed_version("ntkgp"), "torch": torch.__version__},
        "layouts": layouts,
        "facts": state.facts,
    }
    header = {"ntkgp": json.dumps(about, default=methodcaller("item"))}  # numbers of NumPy become Python's
    with replacing(target) as temporary:
        # Its function for torch remembers a class for every size it has ever met: by NumPy, where that knows the dtype.
        if any(block.dtype == torch.bfloat16 for block in tensors.values()):
            save_bfloat16(tensors, temporary, metadata=header)
        else:
            save_file({name: block.numpy() for name, block in tensors.items()}, temporary, metadata=header)
        _sign(temporary)


def read(path: str | os.PathLike[str], device: torch.device) -> tuple[str, State]:
    """The kind and the state that :func:`write` was given, the tensors on `device`; a damaged file is a ValueError."""
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"there is no file {source}")
    try:
        with safe_open(source, framework="np") as file, safe_open(source, framework="pt") as with_bfloat16:
            about = _about(source, (file.metadata() or {}).get("ntkgp"))
            _check_whole(source, str(about["sha256"]))
            blocks: dict[str, Tensor] = {}
            for name in file.keys():  # noqa: SIM118
                # Every tensor that safetensors makes for torch leaves a little memory behind: by NumPy, as in `write`.
                narrow = file.get_slice(name).get_dtype() == "BF16"
                block = with_bfloat16.get_tensor(name) if narrow else torch.from_numpy(file.get_tensor(name))
                # Into torch's own memory: aligned as what was saved, and safe from what happens to the mapped file later.
                blocks[name] = block.clone()
    except (SafetensorError, UnicodeError) as error:
        raise ValueError(f"{source} is damaged, or no safetensors file: {error}") from error
    for name, order in about["layouts"].items():
        if name not in blocks or not isinstance(order, list) or sorted(map(str, order)) != _axes(blocks[name]):
            raise ValueError(f"{source} is damaged: its header has a wrong layout for {name!r}")
    tensors = {name: _restored(block.to(device), about["layouts"].get(name)) for name, block in blocks.items()}
    return about["kind"], State(tensors, about["facts"])


def _about(source: Path, text: str | None) -> dict[str, Any]:
    if text is None:
        raise ValueError(f"{source} has no header of ntkgp: it is damaged, or was not written by posterior.save")
    try:
        about = json.loads(text)
    except (ValueError, RecursionError) as error:  # no JSON, numbers of very many digits, or lists in lists in lists
        raise ValueError(f"{source} is damaged: its header is not JSON ({error})") from error
    if not isinstance(about, dict) or type(about.get("format")) is not int:
        raise ValueError(f"{source} is damaged: its header is not one of ntkgp")
    if about["format"] != FORMAT:
        raise ValueError(
            f"{source} has format {about['format']} (written by {about.get('versions')}), expected {FORMAT}, which this "
            "version of ntkgp reads; update ntkgp"
        )
    for name, kind in {"sha256": str, "kind": str, "layouts": dict, "facts": dict}.items():
        if not isinstance(about.get(name), kind):
            raise ValueError(f"{source} is damaged: its header has no {name!r}, or one that is not a {kind.__name__}")
    return about


def _check_whole(source: Path, claimed: str) -> None:
    with open(source, "rb") as file:
        header = _header(file)
        if header.count(claimed.encode()) == 1:
            header = header.replace(claimed.encode(), BLANK.encode())
        if _digest(header, file) != claimed:
            raise ValueError(f"{source} is damaged: its content is not what its sha256 says; use another copy of it")


def _sign(path: Path) -> None:
    with open(path, "r+b") as file:
        header = _header(file)
        digest = _digest(header, file)
        file.seek(header.index(BLANK.encode()))
        file.write(digest.encode())
        file.flush()
        os.fsync(file.fileno())


def _header(file: BinaryIO) -> bytes:
    length = file.read(8)
    return length + file.read(int.from_bytes(length, "little"))


def _digest(header: bytes, rest: BinaryIO) -> str:
    sha = hashlib.sha256(header)
    while block := rest.read(2**20):
        sha.update(block)
    return sha.hexdigest()


def _flattened(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, list[int]]]:
    """The tensors as contiguous blocks, and the order of the axes of those that are not.

    A transposed matrix comes back transposed: products with it then round as they did.
    """
    flat, layouts, seen = {}, {}, set[int]()
    for name, tensor in tensors.items():
        order = list(range(tensor.ndim))
        if not tensor.is_contiguous():
            order.sort(key=lambda axis: -tensor.stride(axis) if tensor.shape[axis] > 1 else -torch.inf)
        if order != sorted(order):
            layouts[name] = order
        block = tensor.detach().permute(order).contiguous().cpu()
        memory = block.untyped_storage().data_ptr()
        flat[name] = block.clone() if memory in seen else block  # safetensors refuses shared memory
        seen.add(memory)
    return flat, layouts


def _axes(block: Tensor) -> list[str]:
    return sorted(map(str, range(block.ndim)))


def _restored(block: Tensor, order: list[int] | None) -> Tensor:
    return block if order is None else block.permute([order.index(axis) for axis in range(block.ndim)])


@cache
def installed_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # used from a source tree
        return "not installed"
