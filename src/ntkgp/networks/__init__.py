"""Networks to fit, and their layers.

The paper's MLP, its layers and inputs, sums of networks, networks of infinite width, and the default network for Bayesian
optimisation. Plain ``nn.Module`` code, and the recursion over the layers of an infinite network: this room has no Jacobians
and no data.
"""

from ntkgp.networks.activations import Absolute, Cosine, Erf, Gaussian, Sine
from ntkgp.networks.infinite.layers import InfiniteLinear
from ntkgp.networks.layers import InputScales, NTKLinear, TrigonometricInputs
from ntkgp.networks.parameters import last_layer
from ntkgp.networks.sums import Residual, SumOfNetworks
from ntkgp.networks.unit_cube import default_network

__all__ = [
    "Absolute", "Cosine", "Erf", "Gaussian", "InfiniteLinear", "InputScales", "NTKLinear", "Residual", "Sine", "SumOfNetworks",
    "TrigonometricInputs", "default_network", "last_layer",
]  # fmt: skip
