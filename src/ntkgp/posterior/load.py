"""Load posteriors from files."""

import os

from torch import nn

from ntkgp._system.settings import in_own_settings
from ntkgp._system.types import MeanFunction
from ntkgp.posterior.exact.posterior import ExactPosterior
from ntkgp.posterior.interface import Posterior
from ntkgp.posterior.lowrank.posterior import LowRankPosterior
from ntkgp.posterior.trained.posterior import TrainedPosterior
from ntkgp.storage.file import read

KINDS: dict[str, type[Posterior]] = {kind.kind: kind for kind in (ExactPosterior, LowRankPosterior, TrainedPosterior)}


@in_own_settings()
def load(path: str | os.PathLike[str], module: nn.Module, *, prior_mean: MeanFunction | None = None) -> Posterior:
    """Load the posterior that ``posterior.save(path)`` wrote, ready for queries.

    On the same machine it gives bit-identical answers.

    The file does not contain the network: the module is copied, and must have the architecture, dtype, parameters and buffers
    it had in the fit. Training mode and frozen parameters do not matter. A damaged file raises a ValueError. Cost: one read of
    the file; memory that of the posterior.

    Args:
        path: a file written by ``posterior.save``.
        module: the module that was fitted, on the device for the posterior.
        prior_mean: the function passed to ``fit``, which files cannot store; None if it was None or ``network_mean``.

    Example:
        >>> import tempfile, torch, ntkgp
        >>> net = ntkgp.mlp(1, width=16, generator=torch.Generator().manual_seed(0))
        >>> x = torch.linspace(-1, 1, 6).unsqueeze(1)
        >>> posterior = ntkgp.fit(net, x, x[:, 0].sin(), noise_var=0.1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     posterior.save(f"{folder}/posterior.safetensors")
        ...     again = ntkgp.load(f"{folder}/posterior.safetensors", net)
        >>> bool((again.predict(x).mean == posterior.predict(x).mean).all())
        True
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be the torch.nn.Module that was fitted, got {type(module).__name__}")
    device = next((p.device for p in module.parameters()), None)
    if device is None:
        raise ValueError("module has no parameters; pass the module that was fitted")
    kind, state = read(path, device)
    if kind not in KINDS:
        raise ValueError(
            f"{path} holds a posterior of kind {kind!r}, and this version of ntkgp knows only {sorted(KINDS)}; update ntkgp"
        )
    try:
        return KINDS[kind].from_state(state, module, prior_mean)
    except ValueError as error:
        raise ValueError(f"cannot load {path}: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError) as error:
        # The checksum is right, but posterior.save did not write this content.
        raise ValueError(
            f"cannot load {path}: its content is not a valid posterior ({type(error).__name__}: {error})"
        ) from error
