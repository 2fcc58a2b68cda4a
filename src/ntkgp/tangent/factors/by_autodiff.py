"""A layer whose rule does not hold at these points: its rows of J by autodiff, computed anew in every product."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp.tangent.autodiff import AutodiffRows
from ntkgp.tangent.factors.direct import Direct
from ntkgp.tangent.factors.factor import Factor
from ntkgp.tangent.factors.layers import Layer
from ntkgp.tangent.layout import ParameterLayout
from ntkgp.tangent.network import PureNetwork


@dataclass(frozen=True)
class ByAutodiff(Factor):
    """The points themselves instead of factors. Packed vectors are those of the layer, so other points may have its factors."""

    x: Tensor
    layer: Layer
    network: PureNetwork
    scales: dict[str, float]
    outputs: int  # C

    @property
    def _layout(self) -> ParameterLayout:
        return ParameterLayout({name: self.network.anchor[name].shape for name in self.layer.parameters})

    @property
    def _rows(self) -> AutodiffRows:
        return AutodiffRows(self.network, self._layout, self.scales, self.x, self.outputs)

    @property
    def bytes_per_point(self) -> int:
        """Bytes of the stored point."""
        return self.x[0].numel() * self.x.element_size()

    def working_numbers(self, columns: int) -> int:
        """Numbers per point in the largest intermediate of a product with `columns` columns."""
        return self._rows.working_numbers(columns)

    @property
    def kernel_operations(self) -> int:
        """Multiplications per pair of points in a kernel."""
        return self.outputs**2 * self._layout.size

    def points(self, rows: slice) -> "ByAutodiff":
        """The rows of a slice of the points, as views."""
        return replace(self, x=self.x[rows])

    def to(self, dtype: torch.dtype) -> "ByAutodiff":
        """The same rows: products return the dtype of the vectors."""
        return self

    def matmat(self, v: Float[Tensor, "S *packed"]) -> Float[Tensor, "nC S"]:
        """J v."""
        return self._rows.matmat(self._layout.join(self.layer.unpack(v)))

    def accumulate(self, u: Float[Tensor, "nC S"], out: Float[Tensor, "S *packed"]) -> None:
        """Add Jᵀ u to `out`."""
        flat = u.new_zeros(len(out), self._layout.size)
        self._rows.accumulate(u, flat)
        out += self.layer.pack(self._layout.split(flat))

    def dense(self) -> Float[Tensor, "nC p"]:
        """The entries of J, in packed order."""
        return self.layer.pack(self._layout.split(self._rows.dense())).flatten(1)

    def direct(self) -> Direct:
        """The rows as a factor that stores them; differentiable in the points and in the network's settings."""
        return Direct(self.dense().unflatten(0, (-1, self.outputs)))

    def kernel(self, other: Factor) -> Float[Tensor, "nC mC"]:
        """J J′ᵀ."""
        rows = self.dense()
        return rows @ (rows if other is self else other.dense()).T

    def diag(self) -> Float[Tensor, "nC"]:
        """Squared norms of the rows of J."""
        return self.dense().square().sum(dim=1)
