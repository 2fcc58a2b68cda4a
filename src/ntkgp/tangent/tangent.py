"""The tangent of a network at θ0: J(x) at any x, by layer factors where they are known and by autodiff elsewhere."""

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp.tangent.autodiff import AutodiffJacobian
from ntkgp.tangent.factored import FactoredJacobian, sum_of
from ntkgp.tangent.factors import LayerFactors
from ntkgp.tangent.functional import ParameterSpace, PureNetwork
from ntkgp.tangent.jacobian import Jacobian


class BlockJacobian(Jacobian):
    """[J_1 | J_2 | …]: each block owns a run of parameters."""

    def __init__(self, blocks: list[Jacobian]):
        self.blocks = blocks
        self.shape = (blocks[0].shape[0], sum(block.shape[1] for block in blocks))

    def matmat(self, v: Float[Tensor, "P S"]) -> Float[Tensor, "NC S"]:
        """J v = Σ J_b v_b."""
        parts = v.split([block.shape[1] for block in self.blocks])
        return sum_of([block.matmat(part) for block, part in zip(self.blocks, parts, strict=True)])

    def rmatmat(self, u: Float[Tensor, "NC S"]) -> Float[Tensor, "P S"]:
        """Jᵀ u, block above block."""
        return torch.cat([block.rmatmat(u) for block in self.blocks])

    def kernel(self, other: Jacobian | None = None) -> Float[Tensor, "NC MC"]:
        """Σ J_b J_b′ᵀ."""
        if other is None:
            return sum_of([block.kernel() for block in self.blocks])
        assert isinstance(other, BlockJacobian)
        return sum_of([block.kernel(theirs) for block, theirs in zip(self.blocks, other.blocks, strict=True)])

    def diag(self) -> Float[Tensor, "NC"]:
        """Squared norms of the rows of J."""
        return sum_of([block.diag() for block in self.blocks])


class Tangent:
    """x ↦ J(x), the Jacobian by the parameters at θ0, each parameter in units of its prior standard deviation.

    Args:
        network: the frozen network.
        x: a few points to check the layer factors against autodiff; a parameter on which they disagree (a layer used in a
            way its rule does not know) is left to autodiff, so the fast path can be slow but not wrong.
        outputs: C.
        scales: prior standard deviation of each parameter.
        factored: False computes everything by autodiff.
    """

    def __init__(
        self,
        network: PureNetwork,
        x: Tensor,
        outputs: int,
        scales: dict[str, float] | None = None,
        factored: bool = True,
    ):
        self.network, self.outputs = network, outputs
        self.scales = dict.fromkeys(network.anchor, 1.0) if scales is None else scales
        factors = LayerFactors.of(network, self.scales) if factored else LayerFactors(network, {})
        self._factors = factors.without(_wrong_factors(factors, self.scales, network.cast(x[[0, len(x) // 2, -1]]), outputs))
        fast = self._factors.parameters
        slow = [name for name in network.anchor if name not in set(fast)]
        self._fast = ParameterSpace({name: network.anchor[name].shape for name in fast})
        self._slow = ParameterSpace({name: network.anchor[name].shape for name in slow})
        self.space = ParameterSpace({**self._fast.shapes, **self._slow.shapes})

    def at(self, x: Tensor) -> Jacobian:
        """J(x). Computes and keeps the layer factors at x; differentiable in x if x asks for gradients."""
        blocks: list[Jacobian] = []
        if self._fast.size:
            blocks.append(FactoredJacobian(self._factors, self._fast, x, self.outputs))
        if self._slow.size:
            blocks.append(AutodiffJacobian(self.network, self._slow, self.scales, x, self.outputs))
        return BlockJacobian(blocks)


def _wrong_factors(factors: LayerFactors, scales: dict[str, float], x: Tensor, outputs: int) -> set[str]:
    """Parameters whose factors at x do not reproduce their autodiff Jacobian."""
    if not factors.layers:
        return set()
    network, names = factors.network, factors.parameters
    space = ParameterSpace({name: network.anchor[name].shape for name in names})
    truth = space.split(AutodiffJacobian(network, space, scales, x, outputs).rows(x))
    mine = {name: torch.zeros_like(part) for name, part in truth.items()}
    for layer, outer in factors.at(x, outputs).items():
        packed = outer.dense().unflatten(1, (outer.g.shape[-1], outer.a.shape[-1]))
        mine.update({name: part for name, part in layer.unpack(packed).items() if part.shape == truth[name].shape})
    tolerance = 1e4 * torch.finfo(network.dtype).eps
    return {name for name in names if (mine[name] - truth[name]).norm() > tolerance * truth[name].norm()}
