"""Data that does not fit in memory: a re-iterable of (x, y) batches, gone through once per pass."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor, nn

from ntkgp._system.check_data import check_inputs, check_pair, check_targets

STAY = "batches must stay the same (no shuffle=True, nothing random in them, no source that runs dry)"


@dataclass
class Batches:
    """Batches from a DataLoader or any other re-iterable, moved to the module's device and checked on every pass.

    Memory: one batch. `passes` counts how often the data was gone through.
    """

    source: Iterable[tuple[Tensor, Tensor]]
    device: torch.device
    passes: int = field(default=0, init=False)
    _seen: list[tuple[int, int]] = field(default_factory=list, init=False)  # what tells each batch of the first pass
    _complete: bool = field(default=False, init=False)  # whether that pass came to its end

    def __post_init__(self) -> None:
        if iter(self.source) is self.source:
            raise TypeError(
                "x must be a tensor or something that can be iterated over again and again (a DataLoader, a list of batches), "
                f"got {type(self.source).__name__}, which is used up after one pass"
            )

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass. What was computed from one pass is used with the next: they must be the same, in the same order."""
        count = 0
        for x, y in self._once():
            if count == len(self._seen) and not self._complete:
                self._seen.append(_digest(x, y))
            elif count == len(self._seen) or self._seen[count] != _digest(x, y):
                raise ValueError(f"x gave another batch {count} in this pass than in the first; {STAY}")
            count += 1
            yield x, y
        if count == 0:
            raise ValueError("x gave no batches; expected at least one pair (x, y)")
        if count != len(self._seen):
            raise ValueError(f"x gave {count} batches in this pass and {len(self._seen)} in the first; {STAY}")
        self._complete = True

    def _once(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches as they come, each a pair of tensors that go together."""
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
        """All data as two tensors, for methods that need it at once and whatever its order."""
        pairs = list(self._once())
        if not pairs:
            raise ValueError("x gave no batches; expected at least one pair (x, y)")
        kinds = {tuple(y.shape[1:]) for _, y in pairs}
        if len(kinds) > 1:
            raise ValueError(f"y must have as many columns in every batch, got shapes (n, *s) with s in {sorted(kinds)}")
        return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


def _digest(x: Tensor, y: Tensor) -> tuple[int, int]:
    """Two numbers that would hardly be the same for other points, or for the same in another order.

    Sums of whole numbers, which wrap around: unlike those of floating ones they are the same for any number of threads.
    """

    def one(t: Tensor) -> int:
        bits = t.detach().double().flatten().view(torch.int64)
        weights = torch.arange(len(bits), device=bits.device).mul_(0x5851F42D4C957F2D).add_(1)
        return int((bits * weights).sum())

    return one(x), one(y)


@dataclass(frozen=True)
class _InTurn:
    """One source after the other, again and again."""

    sources: list[Iterable[tuple[Tensor, Tensor]]]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return chain.from_iterable(self.sources)
