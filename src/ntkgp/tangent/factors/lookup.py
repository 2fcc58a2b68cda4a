"""An embedding: the Jacobian with respect to the table rows that were looked up."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ntkgp.tangent.factors.factor import Factor


@dataclass(frozen=True)
class Lookup(Factor):
    """Σ_t g_t ⊗ e_{index_t} for an embedding table of `size` rows; the one-hot inputs e are never formed."""

    g: Float[Tensor, "n C T d"]
    index: Int[Tensor, "n T"]
    size: int

    @property
    def bytes_per_point(self) -> int:
        """Bytes of the factor per point."""
        return self.g[0].numel() * self.g.element_size() + self.index[0].numel() * 8

    def working_numbers(self, columns: int) -> int:
        """Numbers per point in the largest intermediate of a product with `columns` columns."""
        _, _, T, d = self.g.shape
        return T * columns * d

    @property
    def kernel_operations(self) -> int:
        """Multiplications per pair of points in a kernel."""
        _, C, T, d = self.g.shape
        return C * C * T * T * d

    def points(self, rows: slice) -> "Lookup":
        """The factor of a slice of the points, as views."""
        return Lookup(self.g[rows], self.index[rows], self.size)

    def to(self, dtype: torch.dtype) -> "Lookup":
        """The factor in another dtype."""
        return Lookup(self.g.to(dtype), self.index, self.size)

    def matmat(self, v: Float[Tensor, "S *packed"]) -> Float[Tensor, "nC S"]:
        """J v: the looked-up rows of v times the gradients."""
        return torch.einsum("nctd,sntd->ncs", self.g, v[:, self.index]).flatten(0, 1)

    def accumulate(self, u: Float[Tensor, "nC S"], out: Float[Tensor, "S *packed"]) -> None:
        """Add Jᵀ u to `out`, at the looked-up rows."""
        n, C, T, d = self.g.shape
        spread = torch.einsum("ncs,nctd->sntd", u.view(n, C, -1), self.g)
        out.index_add_(1, self.index.flatten(), spread.reshape(len(out), n * T, d))

    def dense(self) -> Float[Tensor, "nC p"]:
        """The entries of J; each row is as large as the table, so use this for a few points only."""
        n, C, T, d = self.g.shape
        out = self.g.new_zeros(n, C, self.size, d)
        where = self.index.view(n, 1, T, 1).expand(n, C, T, d)
        return out.scatter_add_(2, where, self.g).view(n * C, self.size * d)

    def kernel(self, other: Factor) -> Float[Tensor, "nC mC"]:
        """J J′ᵀ: the inner products of gradients at positions that looked up the same row."""
        if not isinstance(other, Lookup):
            return self.dense() @ other.dense().T
        n, C, T, d = self.g.shape
        m, _, T2, _ = other.g.shape
        same = (self.index.view(n, T, 1, 1) == other.index.view(1, 1, m, T2)).to(self.g.dtype)
        grams = self.g.reshape(n * C * T, d) @ other.g.reshape(m * C * T2, d).T
        grams = grams.view(n, C, T, m, C, T2)
        return torch.einsum("nctmds,ntms->ncmd", grams, same).reshape(n * C, m * C)

    def diag(self) -> Float[Tensor, "nC"]:
        """Squared norms of the rows of J."""
        same = (self.index.unsqueeze(2) == self.index.unsqueeze(1)).to(self.g.dtype)
        return torch.einsum("nctd,ncsd,nts->nc", self.g, self.g, same).flatten()
