"""Public names for BoTorch. Needs the extra ``ntkgp[botorch]``."""

from ntkgp.apps.botorch.model import NTKGPModel
from ntkgp.networks.unit_cube import default_network

__all__ = ["NTKGPModel", "default_network"]
