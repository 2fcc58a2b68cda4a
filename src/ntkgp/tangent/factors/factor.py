"""Factors: what is kept of one layer's Jacobian at n points, and the products with it.

At θ0 a linear layer's Jacobian is Σ_t g_t ⊗ a_t: the gradient g of each network output by the layer's output, and the layer's
input a, over the positions t a sample has (one in an MLP, many in a sequence or an image). Three kinds cover the layers people
use; each multiplies "packed" vectors, whose shape is the weight's with the bias as one more column.
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
        """Memory of the factor."""

    @abstractmethod
    def working_numbers(self, columns: int) -> int:
        """Numbers per point in the largest intermediate of a product with `columns` columns."""

    @property
    @abstractmethod
    def kernel_operations(self) -> int:
        """Multiplications to compare two points in a kernel."""

    @abstractmethod
    def points(self, rows: slice) -> "Factor":
        """The same for fewer points, as views."""

    @abstractmethod
    def to(self, dtype: torch.dtype) -> "Factor":
        """The same in another dtype."""

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
        """What the factor holds, by name."""
        return {field: value for field, value in vars(self).items() if isinstance(value, Tensor)}

    def kernel_with_pullback(self) -> tuple[Float[Tensor, "nC nC"], Pullback]:
        """J Jᵀ, and the function from symmetric weights W to the gradient of ⟨W, J Jᵀ⟩ by the factor's tensors."""
        leaves = {name: t.detach().requires_grad_() for name, t in self.tensors.items() if t.is_floating_point()}
        with torch.enable_grad():
            same = replace(self, **leaves)  # pyright: ignore[reportArgumentType]
            kernel = same.kernel(same)

        def pullback(weights: Float[Tensor, "nC nC"]) -> dict[str, Tensor]:
            return dict(zip(leaves, torch.autograd.grad(kernel, list(leaves.values()), weights), strict=True))

        return kernel.detach(), pullback
