"""The content of an object as named tensors and facts; both are checked on reading."""

import math
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor

T = TypeVar("T")
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}


@dataclass
class State:
    """The content of an object: tensors and JSON facts, by name. Reading checks both."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)  # of each letter in a shape
    orders: dict[str, Tensor] = field(default_factory=dict)  # the order of the entries along each axis with that letter
    older: bool = False  # whether it comes from a file of the version before

    @classmethod
    def of(cls, **parts: Any) -> "State":
        """Make a state of named tensors and facts; a dataclass is stored field by field, under dotted names."""
        state = cls()
        for name, part in parts.items():
            if isinstance(part, Tensor):
                state.tensors[name] = part
            elif isinstance(part, torch.dtype):
                state.facts[name] = str(part).removeprefix("torch.")
            elif is_dataclass(part):
                inner = cls.of(**{f"{name}.{f.name}": getattr(part, f.name) for f in fields(part) if is_stored(f)})
                state.tensors.update(inner.tensors)
                state.facts.update(inner.facts)
            else:
                state.facts[name] = part
        return state

    def __or__(self, other: "State") -> "State":
        return State(self.tensors | other.tensors, self.facts | other.facts)

    def tensor(self, name: str, shape: str, dtype: torch.dtype | None = None, finite: bool = True) -> Tensor:
        """Return a tensor and check its shape: "P K", a sum as "P 1+T", or "N ..."; a letter has one size everywhere."""
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
        """The size of a letter or number; −1 for an unknown letter."""
        return int(letter) if letter.isdigit() else self.sizes.get(letter, -1)

    def fact(self, name: str, *kinds: type) -> Any:
        """Return a fact and check its type; an int also counts as a float."""
        if name not in self.facts:
            raise ValueError(f"{name!r} is missing")
        value = self.facts[name]
        if type(value) not in kinds and not (float in kinds and type(value) is int):
            raise ValueError(f"{name!r} must be {' or '.join(kind.__name__ for kind in kinds)}, got {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name!r} must be finite, got {value!r}")
        return value

    def build(self, kind: type[T], name: str, dtype: torch.dtype | None = None, **shapes: str) -> T:
        """Build a dataclass stored by :meth:`of`; fields in `shapes` are tensors, the others facts of the field's type."""
        parts = {}
        for f in filter(is_stored, fields(kind)):  # pyright: ignore[reportArgumentType]
            full, kinds = f"{name}.{f.name}", get_args(f.type) or (f.type,)
            if f.name in shapes:
                parts[f.name] = self.tensor(full, shapes[f.name], dtype)
            else:
                parts[f.name] = self.dtype(full) if f.type is torch.dtype else self.fact(full, *kinds)  # pyright: ignore
        return kind(**parts)

    def dtype(self, name: str) -> torch.dtype:
        """Return a fact that names a floating dtype."""
        value = self.fact(name, str)
        if value not in DTYPES:
            raise ValueError(f"{name!r} must be one of {list(DTYPES)}, got {value!r}")
        return DTYPES[value]


def is_stored(f: Field) -> bool:  # pyright: ignore[reportMissingTypeArgument]
    """Whether a dataclass field is stored in files; ``metadata={"stored": False}`` excludes it."""
    return f.metadata.get("stored", True)
