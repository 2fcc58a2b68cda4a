"""Choosing parameters by name."""

from torch import nn


def last_layer(module: nn.Module) -> list[str]:
    """Return the name of the last module with trainable parameters, for ``fit(..., parameters=last_layer(module))``.

    "Last" is the order of registration, which in an ``nn.Sequential`` is the order of use.

    Example:
        >>> import ntkgp
        >>> last_layer(ntkgp.mlp(2, width=8))
        ['4']
    """
    names = [name for name, p in module.named_parameters() if p.requires_grad]
    if not names:
        raise ValueError("module has no trainable parameters; expected at least one with requires_grad=True")
    return [names[-1].rpartition(".")[0]]
