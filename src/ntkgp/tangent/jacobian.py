"""What the rest of the library knows of a Jacobian J(x): four products, never its entries."""

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor


class Jacobian(ABC):
    """J(x), the NC×P derivative of the network's outputs by its (scaled) parameters at θ0, as an operator."""

    shape: tuple[int, int]

    @abstractmethod
    def matmat(self, v: Float[Tensor, "P S"]) -> Float[Tensor, "NC S"]:
        """J v."""

    @abstractmethod
    def rmatmat(self, u: Float[Tensor, "NC S"]) -> Float[Tensor, "P S"]:
        """Jᵀ u."""

    @abstractmethod
    def kernel(self, other: "Jacobian | None" = None) -> Float[Tensor, "NC MC"]:
        """J(x) J(x′)ᵀ, with x′ = x when `other` is None."""

    @abstractmethod
    def diag(self) -> Float[Tensor, "NC"]:
        """The diagonal of J(x) J(x)ᵀ."""


def spans(total: int, size: int) -> list[slice]:
    """Consecutive slices of at most `size` that cover ``range(total)``; one empty slice when there is nothing."""
    return [slice(start, min(start + size, total)) for start in range(0, max(total, 1), size)]


def rows_per_chunk(bytes_per_row: float, budget: float = 64 * 2**20) -> int:
    """How many rows fit a working set of `budget` bytes; at least one."""
    return max(1, int(budget // max(bytes_per_row, 1.0)))
