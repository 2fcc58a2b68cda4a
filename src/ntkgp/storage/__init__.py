"""States, safetensors files, fingerprints of modules, and checkpoints of a fit.

This room stores what it is given; what a posterior or a problem consists of is written beside them.
"""

from ntkgp._system.errors import CheckpointWarning
from ntkgp.storage.checkpoint import Checkpoint

__all__ = ["Checkpoint", "CheckpointWarning"]
