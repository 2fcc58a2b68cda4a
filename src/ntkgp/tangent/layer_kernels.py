"""The kernel per group of parameters, K = Σ_g v_g K_g, and the gradient of K through its factors."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp.tangent.autodiff import AutodiffRows
from ntkgp.tangent.factors.by_autodiff import ByAutodiff
from ntkgp.tangent.factors.direct import Direct
from ntkgp.tangent.factors.factor import Factor, Pullback
from ntkgp.tangent.interfaces import KernelShares
from ntkgp.tangent.layout import ParameterLayout
from ntkgp.tangent.tangent import Tangent


@dataclass(frozen=True)
class LayerKernels(KernelShares):
    """K_g(x, x) for groups g of parameters at n points, and pullbacks for the layers that depend on a setting.

    Memory: one (n·C)² matrix per group, two more per layer that depends on a setting, the factors and their graph.
    """

    kernels: list[Float[Tensor, "nC nC"]]  # one per group
    moving: list[tuple[int, Factor, Pullback]]  # per layer that depends on a setting: group, factor with its graph, pullback

    @classmethod
    def at(
        cls, tangent: Tangent, x: Tensor, groups: list[list[str]], settings: dict[str, Tensor], still: dict[int, Tensor]
    ) -> "LayerKernels":
        """Record the network at x with some of its buffers or weights set to other values.

        `groups` lists the parameter names of each group; together they cover all parameters of the network. `still` caches the
        kernels of groups that depend on no setting; pass the same dictionary in every call.
        """
        # Whether a group depends on a setting shows only when a setting asks for gradients.
        knowing = not settings or any(value.requires_grad for value in settings.values())
        kernels, moving = [], []
        for k, group in enumerate(_factors(tangent.with_settings(settings), x, groups)):
            moves = any(t.requires_grad for factor in group for t in factor.tensors.values())
            if k in still and not moves:
                kernels.append(still[k])
                continue
            total = None
            for factor in group:
                if moves:
                    kernel, pullback = factor.kernel_with_pullback()
                    moving.append((k, factor, pullback))
                else:
                    kernel = factor.kernel(factor)
                total = kernel if total is None else total.add_(kernel)
            assert total is not None
            kernels.append(total)
            if not moves and knowing:
                still[k] = total
        return cls(kernels, moving)

    def matrix(self, prior_var: Float[Tensor, "G"]) -> Float[Tensor, "nC nC"]:
        """Σ_g v_g K_g. Cost: n² operations per group."""
        total = prior_var[0] * self.kernels[0]
        for v, kernel in zip(prior_var[1:], self.kernels[1:], strict=True):
            total.addcmul_(kernel, v)
        return total

    def sizes(self) -> Float[Tensor, "G"]:
        """The mean diagonal entry of each K_g."""
        return torch.stack([kernel.diagonal().mean() for kernel in self.kernels])

    def backward(self, prior_var: Float[Tensor, "G"], weights: Float[Tensor, "nC nC"]) -> Float[Tensor, "G"]:
        """⟨weights, K_g⟩ of each group, and the gradient of the settings.

        Cost: four products of n² numbers by its width per layer that depends on a setting.
        """
        shares = torch.stack([torch.vdot(weights.flatten(), kernel.flatten()) for kernel in self.kernels])
        tensors, gradients = [], []
        for k, factor, pullback in self.moving:
            found = pullback(prior_var[k] * weights)
            for name, tensor in factor.tensors.items():
                if tensor.requires_grad:
                    tensors.append(tensor)
                    gradients.append(found[name])
        if tensors:
            torch.autograd.backward(tensors, gradients)
        return shares


def _factors(tangent: Tangent, x: Tensor, groups: list[list[str]]) -> list[list[Factor]]:
    """The factors of each group; parameters without a factor become one, of rows by autodiff."""
    network, packing = tangent.network, tangent.packing
    x = network.cast(x)
    owner = {name: k for k, names in enumerate(groups) for name in names}
    factors: list[list[Factor]] = [[] for _ in groups]
    for layer, factor in zip(packing.layers, tangent.chunk(x).factors, strict=True):
        factors[owner[layer.weight]].append(factor.direct() if isinstance(factor, ByAutodiff) else factor)
    for k, names in enumerate(groups):
        shapes = {name: packing.slow.shapes[name] for name in names if name in packing.slow.shapes}
        if shapes:
            rows = AutodiffRows(network, ParameterLayout(shapes), tangent.scales, x, tangent.outputs).dense()
            factors[k].append(Direct(rows.unflatten(0, (-1, tangent.outputs))))
    return factors
