"""Predictors: Algorithm 1 returns the function M t = J′Jᵀ(K + σ²I)⁻¹ t for a target t; here for many t at once."""

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor


class Predictors(ABC):
    """S fitted functions of x."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Float[Tensor, "MC S"]:
        """Return M t at the points x, one column per target."""

    @abstractmethod
    def __getitem__(self, which: slice) -> "Predictors":
        """Select predictors by a slice."""
