"""Data that does not fit in memory: a re-iterable of (x, y) batches, gone through once per pass."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor, nn

from ntkgp._checks import check_inputs, check_targets


@dataclass
class Batches:
    """Batches from a DataLoader or any other re-iterable, moved to the module's device and checked on every pass.

    Memory: one batch. `passes` counts how often the data was gone through.
    """

    source: Iterable[tuple[Tensor, Tensor]]
    device: torch.device
    passes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if iter(self.source) is self.source:
            raise TypeError(
                "x must be a tensor or something that can be iterated over again and again (a DataLoader, a list of batches), "
                f"got {type(self.source).__name__}, which is used up after one pass"
            )

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.passes += 1
        for batch in self.source:
            if not isinstance(batch, tuple | list) or len(batch) != 2:
                raise TypeError(f"each batch must be a pair (x, y), got {type(batch).__name__}")
            x, y = batch
            yield x.to(self.device), y.to(self.device)

    def checked(self, module: nn.Module, outputs: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The same, every batch checked."""
        for x, y in self:
            check_inputs(x, module)
            check_targets(y, x, outputs)
            yield x, y

    def followed_by(self, x: Tensor, y: Tensor) -> "Batches":
        """The same with one batch more."""
        return Batches(_InTurn([self.source, [(x, y)]]), self.device)

    def joined(self) -> tuple[Tensor, Tensor]:
        """All data as two tensors, for methods that need it at once."""
        xs, ys = zip(*self, strict=True)
        return torch.cat(xs), torch.cat(ys)


@dataclass(frozen=True)
class _InTurn:
    """One source after the other, again and again."""

    sources: list[Iterable[tuple[Tensor, Tensor]]]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return chain.from_iterable(self.sources)
