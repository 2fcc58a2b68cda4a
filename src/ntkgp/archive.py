"""One safetensors file of tensors and JSON: read back as it was written, or refused.

The JSON stands in the header under "ntkgp". It holds the sha256 of the whole file, taken with 64 zeros in its own place, so no
byte can change unnoticed, not even the padding. Nothing read from a file is executed, and no name in it is used as a path.
"""

import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import cache
from importlib import metadata
from operator import methodcaller
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_bfloat16
from torch import Tensor

T = TypeVar("T")
FORMAT = 2
BLANK = "0" * 64  # where the sha256 will stand
PART = ".part"  # ends the names of what is not yet written
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}


@dataclass
class State:
    """What an object is made of: tensors, and facts that JSON can say, by name. Reading checks both."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)  # of the letters in shapes
    orders: dict[str, Tensor] = field(default_factory=dict)  # in which axes of these letters are to be read

    @classmethod
    def of(cls, **parts: Any) -> "State":
        """Tensors and facts by their names; of a dataclass its fields, by dotted names."""
        state = cls()
        for name, part in parts.items():
            if isinstance(part, Tensor):
                state.tensors[name] = part
            elif isinstance(part, torch.dtype):
                state.facts[name] = str(part).removeprefix("torch.")
            elif is_dataclass(part):
                inner = cls.of(**{f"{name}.{f.name}": getattr(part, f.name) for f in fields(part) if _stored(f)})
                state.tensors.update(inner.tensors)
                state.facts.update(inner.facts)
            else:
                state.facts[name] = part
        return state

    def __or__(self, other: "State") -> "State":
        return State(self.tensors | other.tensors, self.facts | other.facts)

    def tensor(self, name: str, shape: str, dtype: torch.dtype | None = None, finite: bool = True) -> Tensor:
        """A tensor of a shape in letters: "P K", or with a sum as "P 1+T", or "N ..."; a letter is one size everywhere."""
        if name not in self.tensors:
            raise ValueError(f"tensor {name!r} is missing")
        found, letters = self.tensors[name], shape.removesuffix(" ...").split()
        if finite and found.is_floating_point() and not bool(torch.isfinite(found).all()):
            raise ValueError(f"tensor {name!r} holds NaN or infinity")
        got = tuple(found.shape[: len(letters)] if shape.endswith("...") else found.shape)
        if len(got) == len(letters):
            for letter, size in zip(letters, got, strict=True):
                if letter.isidentifier():
                    self.sizes.setdefault(letter, size)
        expected = tuple(sum(self._size(part) for part in letter.split("+")) for letter in letters)
        if got != expected:
            raise ValueError(f"tensor {name!r} has shape {tuple(found.shape)}, expected ({shape}) = {expected}")
        if dtype is not None and found.dtype != dtype:
            raise ValueError(f"tensor {name!r} has dtype {found.dtype}, expected {dtype}")
        for axis, letter in enumerate(letters):
            if letter in self.orders:
                found = found.index_select(axis, self.orders[letter])
        return found

    def _size(self, letter: str) -> int:
        return int(letter) if letter.isdigit() else self.sizes.get(letter, -1)

    def fact(self, name: str, *kinds: type) -> Any:
        """A fact of one of these types; a whole number also counts as a float."""
        if name not in self.facts:
            raise ValueError(f"{name!r} is missing")
        value = self.facts[name]
        if type(value) not in kinds and not (float in kinds and type(value) is int):
            raise ValueError(f"{name!r} must be {' or '.join(kind.__name__ for kind in kinds)}, got {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name!r} must be finite, got {value!r}")
        return value

    def build(self, kind: type[T], name: str, dtype: torch.dtype | None = None, **shapes: str) -> T:
        """A dataclass that :meth:`of` took apart: the fields in `shapes` are tensors, the others facts of their own type."""
        parts = {}
        for f in filter(_stored, fields(kind)):  # pyright: ignore[reportArgumentType]
            full, kinds = f"{name}.{f.name}", get_args(f.type) or (f.type,)
            if f.name in shapes:
                parts[f.name] = self.tensor(full, shapes[f.name], dtype)
            else:
                parts[f.name] = self.dtype(full) if f.type is torch.dtype else self.fact(full, *kinds)  # pyright: ignore
        return kind(**parts)

    def dtype(self, name: str) -> torch.dtype:
        """A fact that names a floating dtype."""
        value = self.fact(name, str)
        if value not in DTYPES:
            raise ValueError(f"{name!r} must be one of {list(DTYPES)}, got {value!r}")
        return DTYPES[value]


def _stored(f: Field) -> bool:  # pyright: ignore[reportMissingTypeArgument]
    return f.metadata.get("stored", True)


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
        "versions": {"ntkgp": _version("ntkgp"), "torch": torch.__version__},
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


def check_plain(target: Path) -> None:
    """A path to write to: a file of its own, or nothing yet."""
    if target.is_symlink() or (target.exists() and not target.is_file()):
        raise ValueError(f"{target} must be a plain file or not exist yet, got a link, a folder or a device; give another path")


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A new file beside `target`, which takes its place at the end of the block; where that fails, it leaves no trace.

    It is made in a folder of its own, since safetensors makes files on the way: a write that is killed leaves just that folder,
    for :func:`sweep`. And safetensors makes them for the user's eyes only, where others may be meant to read them.
    """
    workshop = target.with_name(f".{secrets.token_hex(8)}{PART}")
    temporary, usual = workshop / "new", workshop / "usual"
    try:
        workshop.mkdir()
        usual.touch()
        yield temporary
        shutil.copymode(target if target.exists() else usual, temporary)
        os.replace(temporary, target)
    except (OSError, SafetensorError) as error:
        number = _number(error)
        raise OSError(number or errno.EIO, f"cannot write {target}: {os.strerror(number) if number else error}") from error
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove what writes into this folder left when they were killed."""
    for left in folder.glob(f".*{PART}"):
        shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()


def _number(error: OSError | SafetensorError) -> int | None:
    """The system's number of an error, which safetensors says in words."""
    if isinstance(error, OSError):
        return error.errno
    said = re.search(r"\(os error (\d+)\)", str(error))
    return int(said[1]) if said else None


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
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # used from a source tree
        return "not installed"
