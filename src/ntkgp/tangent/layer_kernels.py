"""The kernel layer by layer, K = Σ_g v_g K_g, and the pull-back of a gradient through its factors."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp.tangent.autodiff import AutodiffRows
from ntkgp.tangent.factors import Direct, Factor
from ntkgp.tangent.functional import ParameterSpace
from ntkgp.tangent.tangent import Tangent


@dataclass(frozen=True)
class LayerKernels:
    """K_g(x, x) of groups g of parameters at n points: J_g as factors, the kernels themselves written out.

    Memory: the factors, their graph where a setting asks for gradients, and one (n·C)² matrix a group.
    """

    factors: list[list[Factor]]  # by group
    kernels: list[Float[Tensor, "nC nC"]]  # by group

    @classmethod
    def at(
        cls,
        tangent: Tangent,
        x: Tensor,
        groups: list[list[str]],
        settings: dict[str, Tensor],
        still: dict[int, Tensor],
    ) -> "LayerKernels":
        """Record the network at x with some of its buffers or weights set to other values.

        `groups` holds the names of the parameters of each group; together they are all of the network's. `still` keeps, from
        call to call, the kernels of groups that no setting moves.
        """
        tangent = tangent.with_settings(settings)
        network, layout = tangent.network, tangent.layout
        x = network.cast(x)
        chunk = tangent.chunk(x)
        owner = {name: k for k, names in enumerate(groups) for name in names}
        factors: list[list[Factor]] = [[] for _ in groups]
        for layer, factor in zip(layout.layers, chunk.factors, strict=True):
            factors[owner[layer.weight]].append(factor)
        for k, names in enumerate(groups):
            shapes = {name: layout.slow.shapes[name] for name in names if name in layout.slow.shapes}
            if shapes:
                rows = AutodiffRows(network, ParameterSpace(shapes), tangent.scales, x, tangent.outputs).dense()
                factors[k].append(Direct(rows.unflatten(0, (-1, tangent.outputs))))
        # Only gradients tell whether a setting reaches a group.
        knowing = not settings or any(value.requires_grad for value in settings.values())
        kernels = []
        for k, group in enumerate(factors):
            moves = any(t.requires_grad for factor in group for t in factor.tensors.values())
            if k in still and not moves:
                kernels.append(still[k])
                continue
            with torch.no_grad():
                kernel = group[0].kernel(group[0])
                for factor in group[1:]:
                    kernel += factor.kernel(factor)
            kernels.append(kernel)
            if not moves and knowing:
                still[k] = kernel
        return cls(factors, kernels)

    def backward(self, prior_var: Float[Tensor, "G"], weights: Float[Tensor, "nC nC"]) -> None:
        """Add the gradient of ⟨weights, Σ_g v_g K_g⟩ to the settings that asked for it; the weights are symmetric."""
        tensors, gradients = [], []
        for group, v in zip(self.factors, prior_var, strict=True):
            for factor in group:
                moving = {name: tensor for name, tensor in factor.tensors.items() if tensor.requires_grad}
                found = factor.kernel_gradient(v * weights) if moving else {}
                tensors += moving.values()
                gradients += [found[name] for name in moving]
        torch.autograd.backward(tensors, gradients)
