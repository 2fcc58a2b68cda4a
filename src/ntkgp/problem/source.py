"""The data as the user passed it: tensors or batches, in one process or on one rank of several."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ntkgp._system.check_module import check_module
from ntkgp.distributed.group import Group
from ntkgp.problem.batches import Batches
from ntkgp.problem.gathering import gathered, noise_differs
from ntkgp.storage.fingerprint import dtypes_of, fingerprint

UserData = Tensor | Iterable[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Source:
    """Points, targets and noise as the user passed them; y is None for batches and for a problem without targets.

    With a group, each rank has a source with its own points, possibly none.
    """

    x: Tensor | Batches
    y: Tensor | None
    noise_var: Any = 1.0
    group: Group | None = None

    @classmethod
    def of(cls, module: nn.Module, x: UserData, y: Tensor | None, noise_var: Any, group: Group | None = None) -> "Source":
        """Build a source from the arguments of ``fit``: x and y as tensors, or x as a re-iterable of (x, y) batches."""
        check_module(module)
        return cls(as_tensor_or_batches(x, y, next(module.parameters()).device), y, noise_var, group)

    def sizes(self) -> tuple[int, int]:
        """Count the rows N·C of all ranks, and the outputs C (1 if there are no targets).

        Cost: one pass over the batches, in any order: a method that needs all data at once does not mind another order.
        """
        if isinstance(self.x, Batches):
            rows, mine = self.x.sizes()
        else:
            y = self.y
            rows = y.numel() if isinstance(y, Tensor) else len(self.x)
            mine = y.shape[1:].numel() if isinstance(y, Tensor) and y.ndim and len(y) else 0
        if self.group is None:
            return rows, mine or 1
        return int(self.group.total(rows)), max(self.group.facts(mine)) or 1

    def whole(self, most_rows: int | None = None) -> "Source":
        """Join all batches and gather the points of all ranks (at most `most_rows` rows) as tensors in this process."""
        if self.group is not None:
            return Source(*gathered(self.group, self.x, self.y, self.noise_var, most_rows))
        if isinstance(self.x, Batches):
            return Source(*self.x.joined(), self.noise_var)
        return self

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return points and targets as two tensors; batches are joined."""
        if isinstance(self.x, Batches):
            return self.x.joined()
        if self.y is None:
            raise ValueError("y is missing; pass the targets")
        return self.x, self.y

    def agree(self, module: nn.Module, **options: object) -> None:
        """Raise on all ranks if they differ in the module, an option or the noise; noise per point may differ."""
        if self.group is None:
            return
        digest = hashlib.sha256(repr(fingerprint(module, dtypes_of(module))).encode()).hexdigest()
        self.group.agree(
            module=f"{type(module).__name__} with weights {digest[:16]}",
            noise_var=repr(self.noise_var) if self.noise_is_common else "per point",
            torch=torch.__version__,
            **{name: repr(option) for name, option in options.items()},
        )

    @property
    def noise_is_common(self) -> bool:
        """Whether all points of all ranks have the same noise: a number, or one per output as (1, C)."""
        differs = noise_differs(self.noise_var)
        return not (differs if self.group is None else self.group.any(differs))


def as_tensor_or_batches(x: UserData, y: Tensor | None, device: torch.device) -> Tensor | Batches:
    """Return a tensor unchanged, and anything else as checked batches."""
    if isinstance(x, Tensor):
        if y is None:
            raise ValueError("y is missing; pass the targets, or x as an iterable of (x, y) batches")
        return x
    if y is not None or not isinstance(x, Iterable):
        kind = type(x).__name__
        raise TypeError(f"x must be a torch.Tensor, got {kind}; use torch.as_tensor(x), or pass (x, y) batches and no y")
    return Batches(x, device)
