"""The prior mean m (zero, the network itself, or any function) and the residuals y − m(x)."""

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.types import MeanFunction
from ntkgp.tangent.network import PureNetwork


def network_mean(x: Tensor) -> Tensor:
    """The network itself, f(x; θ0), as prior mean: pass it to ``fit(..., prior_mean=network_mean)``.

    It is a marker for "the network being fitted"; calling it raises a TypeError.

    Example:
        >>> import torch, ntkgp
        >>> net = ntkgp.mlp(1, width=16, generator=torch.Generator().manual_seed(0))
        >>> x, far = torch.zeros(1, 1), torch.full((1, 1), 3.0)
        >>> post = ntkgp.fit(net, x, net(x)[:, 0].detach(), noise_var=0.1, prior_mean=ntkgp.network_mean)
        >>> bool((post.predict(far).mean - net(far)[:, 0]).abs().item() < 1e-4)  # no surprise, no change
        True
    """
    raise TypeError("network_mean is a marker: pass it as prior_mean, do not call it")


def mean_function(prior_mean: MeanFunction | None, network: PureNetwork, outputs: int) -> MeanFunction:
    """Turn the user's `prior_mean` into a function of x."""
    if prior_mean is None:
        return lambda x: torch.zeros(len(x), outputs, device=x.device)
    if prior_mean is network_mean:
        return network.initial
    if callable(prior_mean):
        return prior_mean
    raise TypeError(f"prior_mean must be None, network_mean or a function of x, got {prior_mean!r}")


def evaluate_mean(mean: MeanFunction, x: Tensor, outputs: int, dtype: torch.dtype) -> Float[Tensor, "M C"]:
    """Return m(x) as (M, C); raise if its shape or values are wrong."""
    # Differentiable in x only: a prior mean that is a module must not record gradients for its parameters.
    with torch.set_grad_enabled(x.requires_grad and torch.is_grad_enabled()):
        value = mean(x)
    if not isinstance(value, Tensor) or value.numel() != len(x) * outputs or not value.is_floating_point():
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"prior_mean must return a floating tensor of shape ({len(x)}, {outputs}), got {got}")
    if not bool(torch.isfinite(value.detach()).all()):
        raise ValueError("prior_mean returned NaN or infinity")
    return value.reshape(len(x), outputs).to(dtype)


def residual_of(mean: MeanFunction, x: Tensor, y: Tensor, outputs: int, dtype: torch.dtype) -> Float[Tensor, "NC"]:
    """Return y − m(x), flattened point-major."""
    return (y.detach().reshape(len(x), outputs).to(dtype) - evaluate_mean(mean, x.detach(), outputs, dtype)).flatten()
