"""One safetensors file of tensors and JSON; a changed file is never read without an error.

The JSON is in the header under "ntkgp". It holds the sha256 of the whole file, computed with 64 zeros in place of the sha256,
so a change of any byte is detected, even in the padding. Nothing in a file is executed, and no name in it is used as a path.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
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

FORMAT, OLDEST_FORMAT = 3, 2  # versions of the file format: the one that is written, and the oldest that can be read
BLANK_SHA256 = "0" * 64  # placeholder for the sha256 while it is computed


def write(path: str | os.PathLike[str], kind: str, state: State) -> None:
    """Write the state to `path` completely or not at all: into a temporary file, which then replaces `path`.

    The same state gives the same bytes. A symbolic link raises ValueError: both replacing it and writing through it would
    surprise the user.
    """
    target = Path(path)
    check_plain(target)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {target}: there is no folder {target.parent}; create it first")
    tensors, layouts = _flattened(state.tensors)
    about = {
        "sha256": BLANK_SHA256,
        "format": FORMAT,
        "kind": kind,
        "versions": {"ntkgp": installed_version("ntkgp"), "torch": torch.__version__},
        "layouts": layouts,
        "facts": state.facts,
    }
    header = {"ntkgp": json.dumps(about, default=methodcaller("item"))}  # converts NumPy numbers to Python numbers
    with replacing(target) as temporary:
        # safetensors' function for torch leaks a class per tensor size, so use NumPy where it has the dtype.
        if any(block.dtype == torch.bfloat16 for block in tensors.values()):
            save_bfloat16(tensors, temporary, metadata=header)
        else:
            save_file({name: block.numpy() for name, block in tensors.items()}, temporary, metadata=header)
        _sign(temporary)


def read(path: str | os.PathLike[str], device: torch.device) -> tuple[str, State]:
    """Read the kind and the state that :func:`write` stored, tensors to `device`; raise ValueError if damaged."""
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"there is no file {source}")
    try:
        with _opened(source) as (file, tensors, tensors_with_bfloat16):
            about = _about(source, (tensors.metadata() or {}).get("ntkgp"))
            _check_sha256(source, file, str(about["sha256"]))
            blocks: dict[str, Tensor] = {}
            for name in tensors.keys():  # noqa: SIM118
                # safetensors leaks a little memory per torch tensor, so use NumPy as in `write`.
                narrow = tensors.get_slice(name).get_dtype() == "BF16"
                block = tensors_with_bfloat16.get_tensor(name) if narrow else torch.from_numpy(tensors.get_tensor(name))
                # Copy: aligned as when it was saved, and independent of later changes to the memory-mapped file.
                blocks[name] = block.clone()
    except (SafetensorError, UnicodeError) as error:
        raise ValueError(f"{source} is damaged, or not a safetensors file: {error}") from error
    for name, order in about["layouts"].items():
        if name not in blocks or not isinstance(order, list) or sorted(map(str, order)) != _axes(blocks[name]):
            raise ValueError(f"{source} is damaged: its header has a wrong layout for {name!r}")
    tensors = {name: _restored(block.to(device), about["layouts"].get(name)) for name, block in blocks.items()}
    return about["kind"], State(tensors, about["facts"], older=about["format"] < FORMAT)


@contextmanager
def _opened(source: Path) -> Iterator[tuple[BinaryIO, Any, Any]]:
    """Open one file three times: its bytes, and its tensors as NumPy and as torch tensors (NumPy has no bfloat16).

    safetensors opens files by name only. If another process replaces the file in between, start again with the new one.
    """
    while True:
        with (
            open(source, "rb") as file,
            safe_open(source, framework="np") as tensors,
            safe_open(source, framework="pt") as tensors_with_bfloat16,
        ):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(source)):
                yield file, tensors, tensors_with_bfloat16
                return


def _about(source: Path, text: str | None) -> dict[str, Any]:
    """Parse and check the JSON of the header."""
    if text is None:
        raise ValueError(f"{source} has no ntkgp header: it is damaged, or was not written by posterior.save")
    try:
        about = json.loads(text)
    except (ValueError, RecursionError) as error:  # not JSON, numbers with too many digits, or lists nested too deep
        raise ValueError(f"{source} is damaged: its header is not JSON ({error})") from error
    if not isinstance(about, dict) or type(about.get("format")) is not int:
        raise ValueError(f"{source} is damaged: its header is not an ntkgp header")
    if not OLDEST_FORMAT <= about["format"] <= FORMAT:
        raise ValueError(
            f"{source} has format {about['format']} (written by {about.get('versions')}), expected {FORMAT}, the format "
            f"of this version of ntkgp, or an older one down to {OLDEST_FORMAT}; update ntkgp"
        )
    for name, kind in {"sha256": str, "kind": str, "layouts": dict, "facts": dict}.items():
        if not isinstance(about.get(name), kind):
            raise ValueError(f"{source} is damaged: its header has no {name!r} of type {kind.__name__}")
    return about


def _check_sha256(source: Path, file: BinaryIO, claimed: str) -> None:
    """Raise ValueError unless the file has the sha256 that its header claims."""
    header = _header(file)
    if header.count(claimed.encode()) == 1:
        header = header.replace(claimed.encode(), BLANK_SHA256.encode())
    if _digest(header, file) != claimed:
        raise ValueError(f"{source} is damaged: its content does not match its sha256; use another copy of the file")


def _sign(path: Path) -> None:
    """Write the sha256 of the file into its header."""
    with open(path, "r+b") as file:
        header = _header(file)
        digest = _digest(header, file)
        file.seek(header.index(BLANK_SHA256.encode()))
        file.write(digest.encode())


def _header(file: BinaryIO) -> bytes:
    """Read the header, with its length."""
    length = file.read(8)
    return length + file.read(int.from_bytes(length, "little"))


def _digest(header: bytes, body: BinaryIO) -> str:
    """The sha256 of the header and of all that is left to read in `body`."""
    sha = hashlib.sha256(header)
    while block := body.read(2**20):
        sha.update(block)
    return sha.hexdigest()


def _flattened(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, list[int]]]:
    """Convert the tensors to contiguous blocks; return these, and the order of the axes of non-contiguous tensors.

    So a transposed matrix is read back with the same strides, and products with it round exactly as before.
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
        flat[name] = block.clone() if memory in seen else block  # safetensors does not accept shared memory
        seen.add(memory)
    return flat, layouts


def _axes(block: Tensor) -> list[str]:
    """The numbers of the axes as sorted text."""
    return sorted(map(str, range(block.ndim)))


def _restored(block: Tensor, order: list[int] | None) -> Tensor:
    """Undo the permutation of :func:`_flattened`."""
    return block if order is None else block.permute([order.index(axis) for axis in range(block.ndim)])


@cache
def installed_version(package: str) -> str:
    """The installed version of a package, or "not installed"."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # imported from a source tree
        return "not installed"
