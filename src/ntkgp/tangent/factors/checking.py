"""Compares layer factors with autodiff at a few points, before a fit relies on them."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp.tangent.factors.layers import Layer
from ntkgp.tangent.factors.recording import DISAGREES, LayerFactors, disagreeing
from ntkgp.tangent.network import PureNetwork, random_weights, weighted_gradients

FEW = 8  # points; fewer are repeated
TOLERANCE = 1e4  # allowed difference of two gradients by autodiff in units of eps


def few_of(x: Tensor) -> Tensor:
    """FEW points from all over x, not in their order: a network that sorts or transposes its batch shows there."""
    return x[spread(len(x)).to(x.device)[torch.tensor([5, 0, 3, 7, 1, 6, 2, 4], device=x.device)]]


def spread(count: int) -> Tensor:
    """FEW indices from the first to the last of `count`."""
    return torch.arange(FEW) * (count - 1) // (FEW - 1)


def broken_rules(factors: LayerFactors, x: Tensor, outputs: int) -> dict[Layer, str]:
    """The layers whose rule does not hold at x, each with the reason.

    For random weights u of the outputs, Jᵀu by the factors must be the gradient of the module itself, called as the user calls
    it. Raise if autodiff of the pure network disagrees with that: then it cannot take the place of a rule.
    """
    network = factors.network
    recording = factors.at(x, outputs)
    u = random_weights(recording.output)
    truth = _module_gradients(network, x, u)
    broken = recording.broken | dict.fromkeys(disagreeing(recording.factors, truth, u), DISAGREES)
    fast = {name for layer in recording.factors.keys() - broken.keys() for name in layer.parameters}
    slow = [name for name in network.anchor if name not in fast]
    for name, found in weighted_gradients(network, slow, x, u).items() if slow else ():
        size = truth[name].norm() + found.norm()
        if not bool((found - truth[name]).norm() <= TOLERANCE * torch.finfo(u.dtype).eps * size):
            raise ValueError(
                f"the module must use its parameters where it owns them, but {name!r} is also used through another reference "
                "(a list, a function or a saved result that holds it), where ntkgp cannot give it other values; use "
                "self.<name> in forward, or nn.ParameterList"
            )
    return broken


def _module_gradients(network: PureNetwork, x: Tensor, u: Float[Tensor, "n C"]) -> dict[str, Tensor]:
    """The gradient of ⟨u, f(x)⟩ for each parameter, by a plain call of the copied module."""
    parameters = dict(network.module.named_parameters())
    leaves = {name: parameters[name] for name in network.anchor}
    with network.alone(), torch.enable_grad():
        try:
            for leaf in leaves.values():
                leaf.requires_grad_()
            out = network.module(x).reshape(len(x), -1)
            _check_own_parameters(out, network.module)
            found = torch.autograd.grad(out, list(leaves.values()), u, materialize_grads=True)
        finally:
            for leaf in leaves.values():
                leaf.requires_grad_(False)
    return dict(zip(leaves, found, strict=True))


def _check_own_parameters(out: Tensor, module: nn.Module) -> None:
    """Raise if the output depends on parameters outside of the module, which a copy of it shares with the user."""
    own, left, seen = {id(p) for p in module.parameters()}, [out.grad_fn], set[Any]()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, nn.Parameter) and id(variable) not in own:
            raise ValueError(
                "the module must own all parameters that it uses, but its output depends on one of shape "
                f"{tuple(variable.shape)} that it does not (of another module, held by a function or a list); register that "
                "module as a submodule"
            )
        left += [one for one, _ in node.next_functions]
