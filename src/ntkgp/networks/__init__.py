"""What can be fitted: networks and their layers.

The paper's MLP, its layers and inputs, sums of networks, and the default network of Bayesian optimisation. Plain ``nn.Module``
code: no derivative, no kernel and no data lives here.
"""

from ntkgp.networks.layers import InputScales, NTKLinear, Sine, TrigonometricInputs
from ntkgp.networks.parameters import last_layer
from ntkgp.networks.sums import SumOfNetworks
from ntkgp.networks.unit_cube import default_network

__all__ = ["InputScales", "NTKLinear", "Sine", "SumOfNetworks", "TrigonometricInputs", "default_network", "last_layer"]
