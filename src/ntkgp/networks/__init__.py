"""Networks to fit, and their layers.

The paper's MLP, its layers and inputs, sums of networks, and the default network for Bayesian optimisation. Plain ``nn.Module``
code: this room has no derivatives, no kernels and no data.
"""

from ntkgp.networks.layers import InputScales, NTKLinear, Sine, TrigonometricInputs
from ntkgp.networks.parameters import last_layer
from ntkgp.networks.sums import SumOfNetworks
from ntkgp.networks.unit_cube import default_network

__all__ = ["InputScales", "NTKLinear", "Sine", "SumOfNetworks", "TrigonometricInputs", "default_network", "last_layer"]
