"""Factors: the compact form of one layer's Jacobian at n points, and the products with it.

At θ0 a linear layer's Jacobian is Σ_t g_t ⊗ a_t, where g is the gradient of each network output with respect to the layer's
output, a is the layer's input, and t runs over the positions of a sample (one in an MLP, many in a sequence or an image).
Three kinds cover the layers in common use. Each multiplies "packed" vectors: the weight, with the bias as one more column.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

Pullback = Callable[[Tensor], dict[str, Tensor]]


class Factor(ABC):
    """One layer's Jacobian at n points, n·C rows."""

    @property
    @abstractmethod
    def bytes_per_point(self) -> int:
        """Bytes of the factor per point."""

    @abstractmethod
    def working_numbers(self, columns: int) -> int:
        """Numbers per point in the largest intermediate of a product with `columns` columns."""

    @property
    @abstractmethod
    def kernel_operations(self) -> int:
        """Multiplications per pair of points in a kernel."""

    @abstractmethod
    def points(self, rows: slice) -> "Factor":
        """The factor of a slice of the points, as views."""

    @abstractmethod
    def to(self, dtype: torch.dtype) -> "Factor":
        """The factor in another dtype."""

    @abstractmethod
    def matmat(self, v: Float[Tensor, "S *packed"]) -> Float[Tensor, "nC S"]:
        """J v."""

    @abstractmethod
    def accumulate(self, u: Float[Tensor, "nC S"], out: Float[Tensor, "S *packed"]) -> None:
        """Add Jᵀ u to `out`."""

    @abstractmethod
    def dense(self) -> Float[Tensor, "nC p"]:
        """The entries of J."""

    @abstractmethod
    def kernel(self, other: "Factor") -> Float[Tensor, "nC mC"]:
        """J J′ᵀ."""

    @abstractmethod
    def diag(self) -> Float[Tensor, "nC"]:
        """Squared norms of the rows of J."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the factor, by name."""
        return {field: value for field, value in vars(self).items() if isinstance(value, Tensor)}

    def chosen(self, rows: Tensor) -> "Factor":
        """The factor of some of the points, copied."""
        return replace(self, **{name: tensor[rows] for name, tensor in self.tensors.items()})  # pyright: ignore

    def kernel_with_pullback(self) -> tuple[Float[Tensor, "nC nC"], Pullback]:
        """J Jᵀ, and the function from symmetric weights W to the gradient of ⟨W, J Jᵀ⟩ for each tensor of the factor."""
        leaves = {name: t.detach().requires_grad_() for name, t in self.tensors.items() if t.is_floating_point()}
        with torch.enable_grad():
            same = replace(self, **leaves)  # pyright: ignore[reportArgumentType]
            kernel = same.kernel(same)

        def pullback(weights: Float[Tensor, "nC nC"]) -> dict[str, Tensor]:
            return dict(zip(leaves, torch.autograd.grad(kernel, list(leaves.values()), weights), strict=True))

        return kernel.detach(), pullback
