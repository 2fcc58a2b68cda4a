"""The prior mean m (zero, the network itself, or any function), its checks, and the residuals y − m(x)."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ntkgp._system.memory import ran_out
from ntkgp._system.settings import full_precision
from ntkgp._system.types import MeanFunction
from ntkgp.tangent.network import PureNetwork

CHECKED_POINTS = 16  # points at which a function is checked before it becomes a prior mean
ROUNDING = 1e-3  # largest relative difference between calls on different batches that can be rounding


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


@dataclass(frozen=True)
class GivenMean:
    """A prior mean that is a function of the user. It gets copies of the points, so it cannot change the user's data."""

    function: MeanFunction

    def __call__(self, x: Tensor) -> Tensor:
        """Return m(x)."""
        return self.function(x.clone())


def mean_function(prior_mean: MeanFunction | None, network: PureNetwork, outputs: int, x: Tensor) -> MeanFunction:
    """Turn the user's `prior_mean` into a function of x; check it on the first points of x."""
    if prior_mean is None:
        return lambda x: torch.zeros(len(x), outputs, device=x.device)
    if prior_mean is network_mean:
        if network.infinite is not None:
            raise ValueError(
                "prior_mean=network_mean needs the outputs of the network, and a network of infinite width has none; leave "
                "prior_mean out, or pass a function of x"
            )
        return network.initial
    if not callable(prior_mean):
        raise TypeError(f"prior_mean must be None, network_mean or a function of x, got {prior_mean!r}")
    _check_mean(prior_mean, x[:CHECKED_POINTS].detach(), outputs)
    return GivenMean(prior_mean)


def evaluate_mean(mean: MeanFunction, x: Tensor, outputs: int, dtype: torch.dtype) -> Float[Tensor, "M C"]:
    """Return m(x) as (M, C); raise if its shape or values are wrong."""
    # Differentiable in x only: a prior mean that is a module must not record gradients for its parameters.
    differentiable = x.requires_grad and torch.is_grad_enabled()
    with torch.set_grad_enabled(differentiable):
        value = _checked_value(mean(x), x, outputs).to(dtype)
    return value.detach() if value.requires_grad and not differentiable else value  # it may enable gradients itself


def residual_of(mean: MeanFunction, x: Tensor, y: Tensor, outputs: int, dtype: torch.dtype) -> Float[Tensor, "NC"]:
    """Return y − m(x), flattened point-major."""
    return (y.detach().reshape(len(x), outputs).to(dtype) - evaluate_mean(mean, x.detach(), outputs, dtype)).flatten()


def _check_mean(mean: MeanFunction, points: Tensor, outputs: int) -> None:
    """Check that a prior mean is a deterministic function of each point separately, and that it leaves its input alone."""
    _check_mode(mean)
    devices = [points.device] if points.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.no_grad(), full_precision(), _buffers_unchanged(mean):
        seen = points.clone()
        value = _called(mean, seen, outputs)
        if not torch.equal(seen, points):
            raise ValueError("prior_mean changes its input in place; make it work on a copy (x = x + 1 rather than x += 1)")
        again, backwards, alone = (_called(mean, part.clone(), outputs) for part in (points, points.flip(0), points[:1]))
    if not torch.equal(value, again):
        raise ValueError(
            "prior_mean is random (two calls on the same points differ); expected the same values in every call: fix its "
            "random numbers, or call .eval() on the module it uses"
        )
    change = torch.cat([backwards.flip(0) - value, alone - value[:1]]).abs().max()
    if change > max(ROUNDING, 10 * torch.finfo(value.dtype).eps) * value.abs().max():
        raise ValueError(
            "prior_mean at a point depends on the other points of the call: it changes when the points come in another order, "
            "or alone; expected a function of each point by itself"
        )


def _called(mean: MeanFunction, x: Tensor, outputs: int) -> Float[Tensor, "M C"]:
    """Return m(x) as (M, C); turn errors inside the function into a sentence."""
    try:
        value = mean(x)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if ran_out(error):
            raise
        module = _module_of(mean)
        p = None if module is None else next(module.parameters(), None)
        hint = "" if p is None else f"; it computes in {p.dtype} on {p.device}: move it with prior_mean.to(...)"
        raise ValueError(
            f"prior_mean cannot be called on x of shape {tuple(x.shape)} and dtype {x.dtype} on {x.device}: "
            f"{type(error).__name__}: {error}{hint}"
        ) from error
    return _checked_value(value, x, outputs)


def _checked_value(value: Any, x: Tensor, outputs: int) -> Float[Tensor, "M C"]:
    """Return what a prior mean returned for x as (M, C); raise if it is not one finite number per point and output."""
    count = len(x)
    if not isinstance(value, Tensor):
        advice = "torch.full((len(x),), ...)" if isinstance(value, float | int) else "torch.as_tensor(...)"
        raise _wrong_value(count, outputs, f"{type(value).__name__}; use {advice}")
    if not value.is_floating_point():
        raise _wrong_value(count, outputs, f"{value.dtype}; use .float() or .double()")
    if value.layout != torch.strided:
        raise _wrong_value(count, outputs, f"one of layout {value.layout}; use .to_dense()")
    if value.device != x.device:
        raise _wrong_value(count, outputs, f"one on {value.device}, but x is on {x.device}; use .to(x.device)")
    # A function that squeezes its output loses axes if there is one point.
    if value.numel() != count * outputs or (count > 1 and len(value) != count):
        advice = "; use torch.full((len(x),), ...)" if value.numel() == 1 else ""
        raise _wrong_value(count, outputs, f"one of shape {tuple(value.shape)}{advice}")
    value = value.reshape(count, outputs)
    finite = torch.isfinite(value.detach()).all(dim=1)
    if not bool(finite.all()):
        row = int((~finite).nonzero()[0])
        raise ValueError(f"prior_mean returned NaN or infinity for row {row} of x; expected finite numbers at every point")
    return value


def _wrong_value(count: int, outputs: int, got: str) -> ValueError:
    shape = f"({count},) or ({count}, 1)" if outputs == 1 else f"({count}, {outputs})"
    return ValueError(f"prior_mean must return a floating tensor of shape {shape}, got {got}")


def _check_mode(mean: MeanFunction) -> None:
    """Raise if a prior mean is a module with dropout or batch norm in training mode."""
    module = _module_of(mean)
    for name, part in () if module is None else module.named_modules():
        if part.training and (isinstance(part, _BatchNorm) or (isinstance(part, _DropoutNd) and part.p > 0)):
            raise ValueError(
                f"layer {name!r} ({type(part).__name__}) of prior_mean is in training mode, where the output is not a function "
                "of the input alone; call .eval() on it first"
            )


def _module_of(mean: MeanFunction) -> nn.Module | None:
    """Return the module that a prior mean is, or is a method of; None for other functions."""
    owner = getattr(mean, "__self__", mean)
    return owner if isinstance(owner, nn.Module) else None


@contextlib.contextmanager
def _buffers_unchanged(mean: MeanFunction) -> Iterator[None]:
    """Raise if the block changes a buffer of a prior mean that is a module; restore it first."""
    module, changed = _module_of(mean), list[str]()
    parts = [] if module is None else module.named_modules()
    before = [(part, path, name, t, t.clone()) for path, part in parts for name, t in part._buffers.items() if t is not None]
    try:
        yield
    finally:
        for part, path, name, buffer, value in before:
            if part._buffers.get(name) is not buffer or not torch.equal(buffer, value):
                part._buffers[name] = buffer.copy_(value)  # it may have been replaced by another tensor
                changed.append(f"{path}.{name}" if path else name)
    if changed:
        raise ValueError(
            f"buffer {changed[0]!r} of prior_mean changes when it is called; call .eval() on it, or remove the buffer from it"
        )
