"""Where a long computation leaves its state, so that it can go on from there. It need not know whether that is a file."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor


class Bookmark(ABC):
    """The state of one computation: tensors by name."""

    @abstractmethod
    def load(self) -> dict[str, Tensor] | None:
        """What was left, or None at the beginning."""

    @abstractmethod
    def save(self, state: Callable[[], dict[str, Tensor]]) -> None:
        """Called after every step; the state is only asked for when it is time to keep it."""


class Nowhere(Bookmark):
    """Nothing is kept."""

    def load(self) -> dict[str, Tensor] | None:
        """Always the beginning."""
        return None

    def save(self, state: Callable[[], dict[str, Tensor]]) -> None:
        """Not kept."""


NOWHERE = Nowhere()
