"""Rows of J(x) for any module, by autodiff: forward mode for J v, reverse mode for Jᵀ u, per-sample rows for kernels."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jacrev, jvp, vjp, vmap

from ntkgp._system.locks import ForkLock
from ntkgp._system.memory import ran_out
from ntkgp.tangent.layout import ParameterLayout
from ntkgp.tangent.network import PureNetwork, random_weights, weighted_gradients

# torch counts the levels of forward-mode differentiation per process, not per thread, so only one thread may use it at a time.
_forward_mode = ForkLock(order=0)


class AutodiffRows:
    """The rows of J at the points x, over the parameters of `layout`, each in units of its prior standard deviation.

    J v costs two forward passes per column, Jᵀ u three, a kernel row one backward pass per output; ``torch.func`` batches all
    of them. Modules that ``torch.func`` cannot transform (recurrent layers) take one backward pass per row and product.
    """

    def __init__(self, network: PureNetwork, layout: ParameterLayout, scales: dict[str, float], x: Tensor, outputs: int):
        self.network, self.layout, self.scales, self.x, self.outputs = network, layout, scales, x, outputs
        self._params = {name: network.anchor[name] for name in layout.shapes}

    def matmat(self, v: Float[Tensor, "S p"]) -> Float[Tensor, "nC S"]:
        """J v, all columns at once."""
        if len(v) == 0:  # vmap needs at least one column
            return v.new_zeros(len(self.x) * self.outputs, 0)
        if not self.network.transformable or not self._forward_mode():
            return self.dense().to(v.dtype) @ v.T
        return self._forward(v)

    def _forward_mode(self) -> bool:
        """Whether forward mode agrees with reverse mode, which training uses; hooks on gradients change only the latter."""
        if self.network.forward_mode is None:
            few = self.points(slice(0, 4))
            v = torch.randn(1, self.layout.size, generator=torch.Generator().manual_seed(0), dtype=self.network.dtype)
            v = v.to(self.x.device)
            with torch.no_grad():
                rows, found = few.dense(), few._forward(v)
                allowed = 1e4 * torch.finfo(v.dtype).eps * rows.norm() * v.norm() / v.numel() ** 0.5
                self.network.forward_mode = bool((rows @ v.T - found).norm() <= allowed)
        return self.network.forward_mode and self.network.transformable

    def check_forward_mode(self) -> None:
        """Compare forward with reverse mode at all of these points: ⟨u, J v⟩ = ⟨Jᵀu, v⟩ for random u and v.

        Some operations have the wrong derivative in one of them at some points only, such as those with a padding token.
        Cost: about three forward passes. Products use reverse mode from then on if the two differ.
        """
        network = self.network
        if not network.transformable or network.forward_mode is False:
            return
        g = torch.Generator().manual_seed(0)
        v = torch.randn(1, self.layout.size, generator=g, dtype=network.dtype).to(self.x.device)
        u = torch.randn(len(self.x) * self.outputs, 1, generator=g, dtype=network.dtype).to(self.x.device)
        with torch.no_grad():
            found, back = self._forward(v), torch.zeros_like(v)
            if not network.transformable:  # found while trying
                return
            self.accumulate(u, back)
            allowed = 1e4 * torch.finfo(v.dtype).eps * torch.maximum(found.norm(), back.norm())
            network.forward_mode = bool(((u * found).sum() - (back * v).sum()).abs() <= allowed)

    def _forward(self, v: Float[Tensor, "S p"]) -> Float[Tensor, "nC S"]:
        """J v by forward mode."""
        tangents = self.scaled(self.layout.split(v.to(self.network.dtype)))

        def column(tangent):
            return jvp(lambda params: self.network(params, self.x), (self._params,), (tangent,))[1].flatten()

        try:
            with _forward_mode:
                return vmap(column)(tangents).T.to(v.dtype)
        except RuntimeError as error:  # no forward-mode derivative for an operation: use plain autograd from now on
            if ran_out(error):
                raise
            self.network.transformable = False
            return self.dense().to(v.dtype) @ v.T

    def accumulate(self, u: Float[Tensor, "nC S"], out: Float[Tensor, "S p"]) -> None:
        """Add Jᵀ u to `out`, all columns at once."""
        if len(out) == 0:
            return
        if not self.network.transformable:
            out += u.T @ self.dense().to(u.dtype)
            return
        pullback = vjp(lambda params: self.network(params, self.x), self._params)[1]
        (grads,) = vmap(pullback)(u.T.reshape(-1, len(self.x), self.outputs).to(self.network.dtype))
        out += self.layout.join(self.scaled(grads))

    def dense(self) -> Float[Tensor, "nC p"]:
        """The entries of J: one backward pass per point and output."""
        if self.network.transformable:
            try:
                rows = self._batched_rows()
                if self._right(rows.detach()):
                    return rows
                self.network.transformable = False
            except RuntimeError as error:  # no batching rule for an operation: use plain autograd from now on
                if ran_out(error):
                    raise
                self.network.transformable = False
        return torch.cat([self._row(point, c) for point in self.x for c in range(self.outputs)])

    def _batched_rows(self) -> Float[Tensor, "nC p"]:
        """All rows of J by ``torch.func``."""

        def single(params, point):
            return self.network(params, point.unsqueeze(0)).squeeze(0)

        jacobian = vmap(jacrev(single), in_dims=(None, 0))(self._params, self.x)
        return self.layout.join(self.scaled(jacobian)).flatten(0, 1)

    @torch.no_grad()
    def _right(self, rows: Float[Tensor, "nC p"]) -> bool:
        """Whether uᵀJ is the gradient by plain autograd for random u; torch.func has wrong rules for some operations.

        They are wrong for some numbers of points only (PReLU: as many as outputs). Cost: one pass, once for each number.
        """
        size, checked = (len(self.x), *map(hash, self.layout.shapes)), self.network.checked_rows
        if size in checked or not len(rows):
            return True
        u = random_weights(rows.new_empty(len(self.x), self.outputs))
        found = weighted_gradients(self.network, list(self.layout.shapes), self.x, u)
        truth, ours = self.layout.join(self.scaled(found)), u.flatten() @ rows
        allowed = 1e4 * torch.finfo(rows.dtype).eps * (u.flatten() @ rows.abs()).norm()
        if right := bool((ours - truth).norm() <= allowed):
            checked.add(size)
        return right

    def _row(self, point: Tensor, c: int) -> Float[Tensor, "1 p"]:
        """One row of J by plain autograd."""
        create_graph = self.network.differentiable(point)
        with torch.enable_grad():
            leaves = {name: p.clone().requires_grad_() for name, p in self._params.items()}
            out = self.network(leaves, point.unsqueeze(0))[0, c]
            if not out.requires_grad:  # the network does not use these parameters at this point
                return out.new_zeros(1, self.layout.size)
            grads = torch.autograd.grad(out, list(leaves.values()), materialize_grads=True, create_graph=create_graph)
        return self.layout.join(self.scaled(dict(zip(leaves, grads, strict=True)))).unsqueeze(0)

    def kernel(self, other: "AutodiffRows") -> Float[Tensor, "nC mC"]:
        """J(x) J(x′)ᵀ."""
        rows = self.dense()
        return rows @ (rows if other is self else other.dense()).T

    def diag(self) -> Float[Tensor, "nC"]:
        """Squared norms of the rows of J."""
        return self.dense().square().sum(dim=1)

    def points(self, rows: slice) -> "AutodiffRows":
        """The rows of J at a slice of the points."""
        return AutodiffRows(self.network, self.layout, self.scales, self.x[rows], self.outputs)

    def joined(self, more: "AutodiffRows") -> "AutodiffRows":
        """The rows of J at these points, then at the points of `more`."""
        return AutodiffRows(self.network, self.layout, self.scales, torch.cat([self.x, more.x]), self.outputs)

    def working_numbers(self, columns: int) -> int:
        """Numbers per point in the largest intermediate of a product: rows of J, or activations of `columns` network copies.

        The activations are estimated from the sizes of the weights.
        """
        activations = sum(shape.numel() ** 0.5 for shape in self.network.layout.shapes.values())
        return int(max(self.outputs * self.layout.size, 4 * columns * activations))

    def scaled(self, parts: dict[str, Tensor]) -> dict[str, Tensor]:
        """Multiply each part by its prior standard deviation."""
        return {name: part * self.scales[name] for name, part in parts.items()}
