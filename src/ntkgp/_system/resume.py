"""Where a long computation saves its state so that it can resume. The computation need not know whether that is a file."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor


class Bookmark(ABC):
    """Saves and loads the state of one computation: tensors by name."""

    @abstractmethod
    def load(self) -> dict[str, Tensor] | None:
        """Return the saved state, or None if there is none."""

    @abstractmethod
    def save(self, state: Callable[[], dict[str, Tensor]]) -> None:
        """Save the state if a save is due; call this after every step, `state` runs only when needed."""


class Nowhere(Bookmark):
    """Saves nothing."""

    def load(self) -> dict[str, Tensor] | None:
        """Return None."""
        return None

    def save(self, state: Callable[[], dict[str, Tensor]]) -> None:
        """Do nothing."""


NOWHERE = Nowhere()
