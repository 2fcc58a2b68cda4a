"""The default network for inputs in the unit cube, as in Bayesian optimisation."""

import torch
from torch import nn

from ntkgp.networks.activations import Sine
from ntkgp.networks.layers import InputScales, TrigonometricInputs
from ntkgp.networks.mlp import mlp
from ntkgp.networks.sums import SumOfNetworks


def default_network(inputs: int, outputs: int = 1, *, generator: torch.Generator | None = None) -> nn.Module:
    """The network of ``NTKGPModel(module=None)`` for inputs in the unit cube: the sum of a smooth and a local network.

    Both start with the paper's trigonometric inputs, which make the prior variance nearly constant over the cube. Without
    them it grows towards the corners, and a search that follows the variance would go there first.

    Example:
        >>> import torch, ntkgp
        >>> net = default_network(3, generator=torch.Generator().manual_seed(0))
        >>> prior = ntkgp.kernel_diag(net, torch.cartesian_prod(*[torch.linspace(0, 1, 4)] * 3))
        >>> bool(prior.max() < 1.5 * prior.min())
        True
    """

    def network(activation: nn.Module, scale: float) -> nn.Module:
        hidden = mlp(2 * inputs, outputs, width=256, activation=activation, output_scale=1.0, generator=generator)
        return nn.Sequential(TrigonometricInputs(0.0, 1.0), InputScales(torch.full((2 * inputs,), scale)), hidden)

    return SumOfNetworks(network(nn.SiLU(), 1.0), network(Sine(), 2.0))
