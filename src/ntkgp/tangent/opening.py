"""Checks the user's module on its first points and turns it into a pure function of its parameters."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ntkgp._system.check_data import check_inputs
from ntkgp._system.check_module import check_module, check_outputs, chosen_parameters
from ntkgp._system.memory import ran_out
from ntkgp.networks.infinite.network import InfiniteNetwork
from ntkgp.tangent.infinite.tangent import InfiniteTangent
from ntkgp.tangent.interfaces import TangentKernel
from ntkgp.tangent.network import PureNetwork
from ntkgp.tangent.tangent import Tangent


def open_network(
    module: nn.Module, x: Tensor, dtype: torch.dtype | None = None, parameters: Iterable[str] | None = None
) -> tuple[PureNetwork, int]:
    """Check the module on the first points; return it as a pure function of its (chosen) parameters, and its outputs C."""
    check_module(module)
    check_inputs(x, module)
    network = PureNetwork(module, dtype, None if parameters is None else chosen_parameters(module, parameters))
    if network.infinite is not None:
        return network, _check_infinite(network.infinite, network.cast(x))
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


def _check_infinite(network: InfiniteNetwork, x: Tensor) -> int:
    """Return the outputs of an infinite network; raise if its layers before the first dense one cannot take the points."""
    try:
        network.diagonal(x[:1].detach(), {})
    except (RuntimeError, ValueError) as error:
        if ran_out(error):
            raise
        raise ValueError(f"the network cannot take x of shape {tuple(x.shape)}: {error}") from error
    return network.outputs


def tangent_of(network: PureNetwork, x: Tensor, outputs: int, scales: dict[str, float] | None = None) -> TangentKernel:
    """The tangent kernel of a network that was opened: by its weights, or by recursion if its width is infinite."""
    if network.infinite is not None:
        return InfiniteTangent(network, network.infinite, dict.fromkeys(network.anchor, 1.0) if scales is None else scales)
    return Tangent(network, x, outputs, scales)
