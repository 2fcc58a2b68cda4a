"""Posteriors from files."""

import os

from torch import nn

from ntkgp._system.types import MeanFunction
from ntkgp.posterior.exact.method import ExactPosterior
from ntkgp.posterior.interface import Posterior
from ntkgp.posterior.lowrank.method import LowRankPosterior
from ntkgp.posterior.trained.method import TrainedPosterior
from ntkgp.storage.file import read

KINDS: dict[str, type[Posterior]] = {kind.kind: kind for kind in (ExactPosterior, LowRankPosterior, TrainedPosterior)}


def load(path: str | os.PathLike[str], module: nn.Module, *, prior_mean: MeanFunction | None = None) -> Posterior:
    """The posterior that ``posterior.save(path)`` wrote, ready to be asked; on the same machine it answers the same bits.

    The file holds no network: the module is copied, and must have the architecture, dtype, parameters and buffers it had when
    the posterior was fitted. Its mode and what of it is frozen do not matter. A damaged file is never loaded. Cost: one pass
    over the file; memory that of the posterior.

    Args:
        path: a file written by ``posterior.save``.
        module: the module that was fitted, on the device where the posterior is to live.
        prior_mean: the function passed to ``fit``, which a file cannot hold; None where that was None or ``network_mean``.

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
            f"{path} holds a posterior of kind {kind!r}; this version of ntkgp knows {sorted(KINDS)}; update ntkgp"
        )
    try:
        return KINDS[kind].from_state(state, module, prior_mean)
    except ValueError as error:
        raise ValueError(f"cannot load {path}: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError) as error:
        # The bytes are what their sha256 says, but nobody's save wrote them.
        raise ValueError(f"cannot load {path}: its content makes no sense ({type(error).__name__}: {error})") from error
