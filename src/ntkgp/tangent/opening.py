"""Checks the user's module on its first points and turns it into a pure function of its parameters."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ntkgp._system.check_data import check_inputs
from ntkgp._system.check_module import check_module, check_outputs, chosen_parameters
from ntkgp._system.memory import ran_out
from ntkgp.tangent.network import PureNetwork


def open_network(
    module: nn.Module, x: Tensor, dtype: torch.dtype | None = None, parameters: Iterable[str] | None = None
) -> tuple[PureNetwork, int]:
    """Check the module on the first points; return it as a pure function of its (chosen) parameters, and its outputs C."""
    check_module(module)
    check_inputs(x, module)
    network = PureNetwork(module, dtype, None if parameters is None else chosen_parameters(module, parameters))
    try:
        outputs = check_outputs(lambda points: network.module(network.cast(points)), network.module, x)
    except RuntimeError as error:
        if ran_out(error):
            raise
        raise ValueError(
            f"the module cannot be called on x of shape {tuple(x.shape)} and dtype {x.dtype} (it computes in {network.dtype}): "
            f"{error}"
        ) from error
    with torch.enable_grad():
        leaves = {name: p.clone().requires_grad_() for name, p in network.anchor.items()}
        if not network(leaves, network.cast(x[:1].detach())).requires_grad:
            raise ValueError(
                "the output of the module does not depend on its trainable parameters, so its tangent kernel is zero; remove "
                "torch.no_grad() or .detach() from its forward"
            )
    return network, outputs
