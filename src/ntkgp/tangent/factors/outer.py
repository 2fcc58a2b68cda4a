"""A weight matrix: the Jacobian as outer products of output gradients and layer inputs."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp.tangent.factors.direct import Direct
from ntkgp.tangent.factors.factor import Factor, Pullback


@dataclass(frozen=True)
class Outer(Factor):
    """Σ_t g_t ⊗ a_t for one weight matrix, with the bias as its last column."""

    g: Float[Tensor, "n C T o"]
    a: Float[Tensor, "n T i"]

    @property
    def bytes_per_point(self) -> int:
        """Bytes of the factor per point."""
        return (self.g[0].numel() + self.a[0].numel()) * self.g.element_size()

    @property
    def smaller(self) -> Factor:
        """The factor, or its rows as a :class:`Direct` factor if they take less memory."""
        _, C, T, o = self.g.shape
        i = self.a.shape[-1]
        return Direct(self.dense().unflatten(0, (-1, C))) if T * (C * o + i) > C * o * i else self

    @property
    def _gradient_first(self) -> bool:
        """Whether to contract with g before a: yes if the intermediate is smaller; the operation count is the same."""
        return self.g.shape[1] * self.a.shape[-1] < self.g.shape[-1]

    def _rows_first(self, columns: int) -> bool:
        """Whether to form the rows of J before multiplying.

        Yes if that takes fewer operations (many positions), or equally many on smaller intermediates (one position, one
        output, and more columns than the layer is wide).
        """
        _, C, T, o = self.g.shape
        return C * (T + columns) < T * columns or (C == T == 1 and columns >= max(o, self.a.shape[-1]))

    def working_numbers(self, columns: int) -> int:
        """Numbers per point in the largest intermediate of a product with `columns` columns."""
        _, C, T, o = self.g.shape
        i = self.a.shape[-1]
        return C * o * i if self._rows_first(columns) else T * columns * min(o, C * i)

    @property
    def kernel_operations(self) -> int:
        """Multiplications per pair of points in a kernel."""
        _, C, T, o = self.g.shape
        i = self.a.shape[-1]
        return C * C * o + i if T == 1 else C * C * o * i

    def points(self, rows: slice) -> "Outer":
        """The factor of a slice of the points, as views."""
        return Outer(self.g[rows], self.a[rows])

    def to(self, dtype: torch.dtype) -> "Outer":
        """The factor in another dtype."""
        return Outer(self.g.to(dtype), self.a.to(dtype))

    def matmat(self, v: Float[Tensor, "S *packed"]) -> Float[Tensor, "nC S"]:
        """J v: a matrix product with g or a, then a contraction with the other."""
        g, a = self.g, self.a
        n, C, T, o = g.shape
        S, i = len(v), a.shape[-1]
        if self._rows_first(S):
            return self.dense() @ v.reshape(S, o * i).T
        if self._gradient_first:
            half = (g.reshape(n * C * T, o) @ v.transpose(0, 1).reshape(o, S * i)).view(n, C, T, S, i)
            return torch.einsum("nctsi,nti->ncs", half, a).flatten(0, 1)
        half = (a.reshape(n * T, i) @ v.reshape(S * o, i).T).view(n, T, S, o)
        if T == 1:
            return torch.bmm(g[:, :, 0], half[:, 0].transpose(1, 2)).flatten(0, 1)
        return torch.einsum("ncto,ntso->ncs", g, half).flatten(0, 1)

    def accumulate(self, u: Float[Tensor, "nC S"], out: Float[Tensor, "S *packed"]) -> None:
        """Add Jᵀ u to `out`: multiply u with g or a, then a matrix product with the other."""
        g, a = self.g, self.a
        n, C, T, o = g.shape
        S, i = len(out), a.shape[-1]
        if self._rows_first(S):
            out.view(S, o * i).addmm_(u.T, self.dense())
        elif self._gradient_first:
            half = torch.einsum("ncs,nti->nctsi", u.view(n, C, S), a).reshape(n * C * T, S * i)
            out += (g.reshape(n * C * T, o).T @ half).view(o, S, i).transpose(0, 1)
        else:
            u = u.view(n, C, S)
            half = u.view(n, 1, S, 1) * g.view(n, T, 1, o) if C == 1 else torch.einsum("ncs,ncto->ntso", u, g)
            out.view(S * o, i).addmm_(half.reshape(n * T, S * o).T, a.reshape(n * T, i))

    def dense(self) -> Float[Tensor, "nC p"]:
        """The entries of J."""
        n, C, T, o = self.g.shape
        g = self.g.transpose(2, 3).reshape(n, C * o, T)
        rows = g * self.a if T == 1 else torch.bmm(g, self.a)
        return rows.view(n * C, o * self.a.shape[-1])

    def kernel(self, other: Factor) -> Float[Tensor, "nC mC"]:
        """J J′ᵀ: two Gram matrices and a Hadamard product if each sample has one position."""
        n, C, T, o = self.g.shape
        if isinstance(other, Outer) and T == other.a.shape[1] == 1:
            m = len(other.a)
            gram = (self.g.reshape(n * C, o) @ other.g.reshape(m * C, o).T).view(n, C, m, C)
            inputs = (self.a[:, 0] @ other.a[:, 0].T).view(n, 1, m, 1)
            product = gram * inputs if gram.requires_grad or inputs.requires_grad else gram.mul_(inputs)
            return product.view(n * C, m * C)
        return self.dense() @ other.dense().T

    def kernel_with_pullback(self) -> tuple[Float[Tensor, "nC nC"], Pullback]:
        """J Jᵀ and its pullback. With one position per sample, both reuse the same two Gram matrices: four products in all."""
        n, C, T, o = self.g.shape
        if T > 1:
            return super().kernel_with_pullback()
        with torch.no_grad():
            g, a = self.g.reshape(n * C, o), self.a[:, 0]
            gram, inputs = g @ g.T, a @ a.T

        def pullback(weights: Float[Tensor, "nC nC"]) -> dict[str, Tensor]:
            by_gradients = (weights.view(n, C, n, C) * inputs.view(n, 1, n, 1)).view(n * C, n * C)
            by_inputs = (weights * gram).view(n, C, n, C).sum(dim=(1, 3))
            return {"g": 2 * (by_gradients @ g).view_as(self.g), "a": 2 * (by_inputs @ a).view_as(self.a)}

        return (gram.view(n, C, n, C) * inputs.view(n, 1, n, 1)).view(n * C, n * C), pullback

    def diag(self) -> Float[Tensor, "nC"]:
        """Squared norms of the rows of J."""
        if self.a.shape[1] == 1:
            return (self.g.square().sum(dim=(2, 3)) * self.a.square().sum(dim=(1, 2)).unsqueeze(1)).flatten()
        return self.dense().square().sum(dim=1)
