"""The two views of a network at some points: a kernel, or products with J(x)."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from torch import Tensor


class KernelRows(ABC):
    """The kernel at some points: all that an exact posterior needs from a network."""

    @abstractmethod
    def gram(self) -> Float[Tensor, "NC NC"]:
        """K(x, x)."""

    @abstractmethod
    def cross(self, other: Any) -> Float[Tensor, "NC MC"]:
        """K(x, x′), where x′ are the points of `other`."""

    @abstractmethod
    def diag(self) -> Float[Tensor, "NC"]:
        """The diagonal of K(x, x)."""


class JacobianRows(ABC):
    """Products with J(x) at some points: all that matrix-free methods and trained networks need."""

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
        """Jᵀ diag(weights) J as a matrix; calls `done` with the number of points after each chunk."""

    @abstractmethod
    def diag(self) -> Float[Tensor, "nC"]:
        """The diagonal of J Jᵀ."""
