"""The rows of a layer's Jacobian, stored without compression."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp.tangent.factors.factor import Factor


@dataclass(frozen=True)
class Direct(Factor):
    """The rows of J, for layers with few parameters (normalisation) or many more positions than weights."""

    j: Float[Tensor, "n C p"]

    @property
    def bytes_per_point(self) -> int:
        """Bytes of the factor per point."""
        return self.j[0].numel() * self.j.element_size()

    def working_numbers(self, columns: int) -> int:
        """Numbers per point in the largest intermediate of a product with `columns` columns."""
        return self.j.shape[1] * columns

    @property
    def kernel_operations(self) -> int:
        """Multiplications per pair of points in a kernel."""
        return self.j.shape[1] ** 2 * self.j.shape[2]

    def points(self, rows: slice) -> "Direct":
        """The factor of a slice of the points, as views."""
        return Direct(self.j[rows])

    def to(self, dtype: torch.dtype) -> "Direct":
        """The factor in another dtype."""
        return Direct(self.j.to(dtype))

    def matmat(self, v: Float[Tensor, "S *packed"]) -> Float[Tensor, "nC S"]:
        """J v."""
        return self.dense() @ v.flatten(1).T

    def accumulate(self, u: Float[Tensor, "nC S"], out: Float[Tensor, "S *packed"]) -> None:
        """Add Jᵀ u to `out`."""
        out.view(len(out), -1).addmm_(u.T, self.dense())

    def dense(self) -> Float[Tensor, "nC p"]:
        """The entries of J."""
        return self.j.flatten(0, 1)

    def kernel(self, other: Factor) -> Float[Tensor, "nC mC"]:
        """J J′ᵀ."""
        return self.dense() @ other.dense().T

    def diag(self) -> Float[Tensor, "nC"]:
        """Squared norms of the rows of J."""
        return self.dense().square().sum(dim=1)
