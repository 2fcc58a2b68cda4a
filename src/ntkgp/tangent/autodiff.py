"""J(x) of any module, by `torch.func`: forward mode for J v, reverse mode for Jᵀ u, per-sample rows for kernels."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jacrev, jvp, vjp, vmap

from ntkgp.tangent.functional import ParameterSpace, PureNetwork
from ntkgp.tangent.jacobian import Jacobian, rows_per_chunk, spans


class AutodiffJacobian(Jacobian):
    """J(x) over the parameters of `space`, each multiplied by its prior scale.

    J v costs two forward passes a column, Jᵀu three; a kernel row one backward pass an output. Peak memory is one chunk of
    rows: the activations of S copies for products, chunk·C×P for kernels.
    """

    def __init__(self, network: PureNetwork, space: ParameterSpace, scales: dict[str, float], x: Tensor, outputs: int):
        self.network, self.space, self.x, self.outputs = network, space, network.cast(x), outputs
        self.scales = scales
        self.shape = (len(x) * outputs, space.size)
        self._params = {name: network.anchor[name] for name in space.shapes}
        # Rows of a kernel chunk are the largest thing held: (rows·C)×P numbers.
        self._rows = min(256, rows_per_chunk(outputs * space.size * 8, budget=512 * 2**20))

    def _scaled(self, parts: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: part * self.scales[name] for name, part in parts.items()}

    def matmat(self, v: Float[Tensor, "P S"]) -> Float[Tensor, "NC S"]:
        """J v, by forward mode, all columns of a chunk together."""
        tangents = self._scaled(self.space.split(v.T))
        columns = spans(v.shape[1], 64)

        def chunk(x: Tensor) -> Tensor:
            def column(tangent: dict[str, Tensor]) -> Tensor:
                return jvp(lambda params: self.network(params, x), (self._params,), (tangent,))[1].flatten()

            return torch.cat([vmap(column)({name: t[cols] for name, t in tangents.items()}) for cols in columns]).T

        return torch.cat([chunk(x) for x in self.x.split(self._rows)])

    def rmatmat(self, u: Float[Tensor, "NC S"]) -> Float[Tensor, "P S"]:
        """Jᵀ u, by reverse mode, all columns of a chunk together."""
        out = u.new_zeros(u.shape[1], self.space.size)
        for rows in spans(len(self.x), self._rows):
            x = self.x[rows]
            pullback = vjp(lambda params, x=x: self.network(params, x), self._params)[1]
            for cols in spans(u.shape[1], 64):
                block = u[rows.start * self.outputs : rows.stop * self.outputs, cols].T
                (grads,) = vmap(pullback)(block.reshape(-1, len(x), self.outputs))
                out[cols] += self.space.join(self._scaled(grads))
        return out.T

    def rows(self, x: Tensor) -> Float[Tensor, "NC P"]:
        """The entries of J for a few points: one backward pass per point and output."""

        def single(params: dict[str, Tensor], point: Tensor) -> Tensor:
            return self.network(params, point.unsqueeze(0)).squeeze(0)

        jacobian = vmap(jacrev(single), in_dims=(None, 0))(self._params, x)
        return self.space.join(self._scaled(jacobian)).flatten(0, 1)

    def kernel(self, other: "Jacobian | None" = None) -> Float[Tensor, "NC MC"]:
        """J(x) J(x′)ᵀ, a block of rows against a block of rows; the rows of x′ are computed anew for each block of x."""
        if not isinstance(other, AutodiffJacobian | None):
            raise TypeError(f"expected an AutodiffJacobian, got {type(other).__name__}")
        right = self if other is None else other
        out = []
        for i, x in enumerate(self.x.split(self._rows)):
            left = self.rows(x)
            out.append(torch.cat([
                left @ (left if other is None and i == j else right.rows(x2)).T
                for j, x2 in enumerate(right.x.split(self._rows))
            ], dim=1))  # fmt: skip
        return torch.cat(out)

    def diag(self) -> Float[Tensor, "NC"]:
        """Squared norms of the rows of J."""
        return torch.cat([self.rows(x).square().sum(dim=1) for x in self.x.split(self._rows)])
