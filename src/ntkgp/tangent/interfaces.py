"""What methods need of a network at some points: a kernel, or products with J(x)."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from torch import Tensor


class KernelRows(ABC):
    """Some points as a kernel sees them: all that an exact posterior needs of a network."""

    @abstractmethod
    def gram(self) -> Float[Tensor, "NC NC"]:
        """K(x, x)."""

    @abstractmethod
    def cross(self, other: Any) -> Float[Tensor, "NC MC"]:
        """K(x, x′) with the points of other rows of the same kernel."""

    @abstractmethod
    def diag(self) -> Float[Tensor, "NC"]:
        """The diagonal of K(x, x)."""


class JacobianRows(ABC):
    """Some points as products with J(x) see them: what matrix-free methods and trained networks need."""

    shape: tuple[int, int]  # N·C and P

    @abstractmethod
    def matmat(self, v: Float[Tensor, "p S"]) -> Float[Tensor, "nC S"]:
        """J v."""

    @abstractmethod
    def rmatmat(self, u: Float[Tensor, "nC S"]) -> Float[Tensor, "p S"]:
        """Jᵀ u."""

    @abstractmethod
    def normal(self, v: Float[Tensor, "p S"], weights: Float[Tensor, "nC"]) -> Float[Tensor, "p S"]:
        """Jᵀ diag(weights) J v."""

    @abstractmethod
    def normal_matrix(self, weights: Float[Tensor, "nC"], done: Callable[[int], object] | None = None) -> Float[Tensor, "P P"]:
        """Jᵀ diag(weights) J written out; `done` is told how many points were added."""

    @abstractmethod
    def diag(self) -> Float[Tensor, "nC"]:
        """The diagonal of J Jᵀ."""
