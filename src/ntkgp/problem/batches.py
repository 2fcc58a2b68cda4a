"""Data that does not fit in memory: a re-iterable of (x, y) batches, read once per pass."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor, nn

from ntkgp._system.check_data import check_inputs, check_pair, check_targets
from ntkgp.storage.digest import digest

SAME_BATCHES = (
    "every pass must give the same batches in the same order: no shuffle=True, no random transforms, no source that runs out"
)


@dataclass
class Batches:
    """Batches from a DataLoader or any other re-iterable, moved to the module's device and checked on every pass.

    Memory: one batch. `passes` counts how often the data was read.
    """

    source: Iterable[tuple[Tensor, Tensor]]
    device: torch.device
    passes: int = field(default=0, init=False)
    _seen: list[tuple[int, int]] = field(default_factory=list, init=False)  # digest of each batch of the first pass
    _complete: bool = field(default=False, init=False)  # whether the first pass reached its end

    def __post_init__(self) -> None:
        if iter(self.source) is self.source:
            raise TypeError(
                "x must be a tensor or an iterable that can be read several times (a DataLoader, a list of batches), "
                f"got {type(self.source).__name__}, which is used up after one pass"
            )

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Make one pass. Results of one pass are used in the next, so raise if batches or their order differ from the first."""
        count = 0
        for x, y in self._one_pass():
            if count == len(self._seen) and not self._complete:
                self._seen.append((digest(x), digest(y)))
            elif count == len(self._seen) or self._seen[count] != (digest(x), digest(y)):
                raise ValueError(f"batch {count} of x is not the same as in the first pass; {SAME_BATCHES}")
            count += 1
            yield x, y
        if count == 0:
            raise ValueError("x gave no batches; expected at least one pair (x, y)")
        if count != len(self._seen):
            raise ValueError(f"x gave {count} batches in this pass but {len(self._seen)} in the first; {SAME_BATCHES}")
        self._complete = True

    def _one_pass(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of the source on the module's device; check that each is a matching pair of tensors."""
        self.passes += 1
        shape: torch.Size | None = None
        for count, batch in enumerate(self.source):
            if not isinstance(batch, tuple | list) or len(batch) != 2:
                raise TypeError(f"each batch must be a pair (x, y), got {type(batch).__name__}")
            x, y = batch
            check_pair(x, y, f" in batch {count}")
            shape = x.shape[1:] if shape is None else shape
            if x.shape[1:] != shape:
                raise ValueError(
                    f"x must have points of shape {tuple(shape)} in every batch, got {tuple(x.shape)} in batch {count}"
                )
            yield x.to(self.device), y.to(self.device)

    def sizes(self) -> tuple[int, int]:
        """The number of targets in all batches, and per point, in one pass that does not compare batches with other passes."""
        rows, outputs = 0, 0
        for _, y in self._one_pass():
            rows, outputs = rows + y.numel(), y.shape[1:].numel() if y.ndim else 0
        return rows, outputs

    def checked(self, module: nn.Module, outputs: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Make one pass and check every batch against the module."""
        for x, y in self:
            check_inputs(x, module)
            check_targets(y, x, outputs)
            yield x, y

    def followed_by(self, x: Tensor, y: Tensor) -> "Batches":
        """Return the same batches with one more at the end."""
        return Batches(_Chained([self.source, [(x, y)]]), self.device)

    def joined(self) -> tuple[Tensor, Tensor]:
        """Join all batches into two tensors, for methods that need all data at once; a changed order does no harm."""
        pairs = list(self._one_pass())
        if not pairs:
            raise ValueError("x gave no batches; expected at least one pair (x, y)")
        kinds = {tuple(y.shape[1:]) for _, y in pairs}
        if len(kinds) > 1:
            raise ValueError(
                f"y must have the same number of columns in every batch, got shapes (n, *s) with s in {sorted(kinds)}"
            )
        return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


@dataclass(frozen=True)
class _Chained:
    """Several sources one after the other, as one re-iterable."""

    sources: list[Iterable[tuple[Tensor, Tensor]]]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return chain.from_iterable(self.sources)
