"""Predictors: what Algorithm 1 returns for a target t, the function M t = J′Jᵀ(K + σ²I)⁻¹ t, for many t at once."""

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor


class Predictors(ABC):
    """S fitted functions of x."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Float[Tensor, "MC S"]:
        """M t at the points x, a column per target."""

    @abstractmethod
    def __getitem__(self, which: slice) -> "Predictors":
        """Some of them."""
