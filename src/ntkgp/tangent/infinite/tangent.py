"""x ↦ the kernel of an infinite network, with a prior variance for each of its layers."""

import copy
from dataclasses import replace

from torch import Tensor

from ntkgp.networks.infinite.network import InfiniteNetwork
from ntkgp.tangent.infinite.rows import InfiniteRows
from ntkgp.tangent.interfaces import TangentKernel
from ntkgp.tangent.layout import ParameterLayout
from ntkgp.tangent.network import PureNetwork

ALL = "all"  # the one group of all parameters


class InfiniteTangent(TangentKernel):
    """The tangent kernel of a network of infinite width: the limit of J(x) J(x′)ᵀ, which needs no weights.

    Args:
        network: the frozen network.
        infinite: its recursion.
        scales: prior standard deviation of the tangent of each layer's weights and biases.
    """

    def __init__(self, network: PureNetwork, infinite: InfiniteNetwork, scales: dict[str, float]):
        self.network, self.infinite, self.outputs, self.scales = network, infinite, infinite.outputs, scales

    @property
    def layout(self) -> ParameterLayout:
        """The standard deviations that describe the network."""
        return self.network.layout

    @property
    def by_autodiff(self) -> dict[str, str]:
        """Nothing: an infinite network needs no derivatives."""
        return {}

    def at(self, x: Tensor) -> InfiniteRows:
        """The kernel at x."""
        priors = {name: (ALL, std**2) for name, std in self.scales.items()}
        return InfiniteRows(self.infinite, self.network.cast(x), priors, self.network.settings)

    @property
    def single(self) -> "InfiniteTangent":
        """The tangent of one of its outputs, which all have the same kernel."""
        other = copy.copy(self)
        other.infinite, other.outputs = replace(self.infinite, outputs=1), 1
        return other

    def with_settings(self, settings: dict[str, Tensor]) -> "InfiniteTangent":
        """The tangent of the same network with other values for some of its buffers or standard deviations."""
        other = copy.copy(self)
        other.network = self.network.with_settings(settings)
        return other
