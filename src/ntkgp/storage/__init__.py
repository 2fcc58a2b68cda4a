"""States, safetensors files, fingerprints of modules, and checkpoints of a fit.

This room stores tensors and facts; each posterior and each problem decides in its room which ones to store.
"""

from ntkgp._system.errors import CheckpointWarning
from ntkgp.storage.checkpoint import Checkpoint

__all__ = ["Checkpoint", "CheckpointWarning"]
