"""Turns a module with infinite layers into the steps of its recursion, and says what is wrong with one that has none."""

import math
from dataclasses import dataclass

import torch
from torch import nn

from ntkgp.networks.infinite.activations import moments_of
from ntkgp.networks.infinite.layers import InfiniteLinear
from ntkgp.networks.infinite.series import series_moments
from ntkgp.networks.infinite.steps import Activation, Chain, Dense, Preparation, Skip, Step, Sum
from ntkgp.networks.sums import Residual, SumOfNetworks

PASSIVE = (nn.Identity, nn.Dropout)  # no effect in evaluation mode


@dataclass(frozen=True)
class Planned:
    """The step of a module, and what it passes on: nothing yet, a finite number of values, or infinitely many."""

    step: Step
    width: float | None  # None before the first dense layer, math.inf or C after it
    ready: bool  # whether the values are those of a dense layer, so that an activation may follow


def plan(module: nn.Module, path: str = "") -> Planned:
    """The steps of a network; raises if a part of it has no known infinite limit."""
    return _plan(module, path, Planned(Chain([]), None, False))


def _plan(module: nn.Module, path: str, before: Planned) -> Planned:
    """The steps of a part of a network that follows others."""
    if isinstance(module, nn.Sequential):
        steps = []
        for name, part in module._modules.items():
            if part is not None:
                before = _plan(part, _join(path, name), before)
                steps.append(before.step)
        return Planned(Chain(steps), before.width, before.ready)
    if isinstance(module, InfiniteLinear):
        return _dense(module, path, before)
    if isinstance(module, SumOfNetworks):
        parts = [_plan(part, _join(path, f"networks.{k}"), before) for k, part in enumerate(module.networks)]
        if len({part.width for part in parts}) > 1 or parts[0].width is None:
            raise ValueError(f"{_called(module, path)} must add infinite networks with equally many outputs")
        return Planned(Sum([part.step for part in parts]), parts[0].width, all(part.ready for part in parts))
    if isinstance(module, Residual):
        after = _plan(module.block, _join(path, "block"), before)
        if before.width != math.inf or after.width != math.inf or not after.ready:
            raise ValueError(f"{_called(module, path)} must have infinite width before it, and end in InfiniteLinear(inf, inf)")
        return Planned(Skip(after.step), math.inf, True)
    if isinstance(module, PASSIVE):
        return Planned(Chain([]), before.width, before.ready)
    if before.width is None:
        if any(True for _ in module.parameters()):
            raise ValueError(f"{_called(module, path)} comes before the first InfiniteLinear, so it must have nothing to train")
        return Planned(Preparation(module, path), None, False)
    return _activation(module, path, before)


def _dense(module: InfiniteLinear, path: str, before: Planned) -> Planned:
    if before.width is None:
        if math.isinf(module.in_features):
            raise ValueError(f"{_called(module, path)} is the first dense layer: its in_features must be the number of inputs")
    elif before.width != module.in_features:
        raise ValueError(f"{_called(module, path)} must have in_features={before.width}, got {module.in_features}")
    bias = None if module.bias_std is None else _join(path, "bias_std")
    step = Dense(_join(path, "weight_std"), bias, module.output_scale**2, module.in_features)
    return Planned(step, module.out_features, True)


def _activation(module: nn.Module, path: str, before: Planned) -> Planned:
    if before.width != math.inf or not before.ready:
        raise ValueError(f"{_called(module, path)} must follow a layer InfiniteLinear(..., math.inf)")
    moments = moments_of(module)
    if moments is None:
        _check_elementwise(module, path)
        return Planned(Activation(lambda a, b, c: series_moments(module, a, b, c)), math.inf, False)
    return Planned(Activation(moments), math.inf, False)


@torch.no_grad()
def _check_elementwise(module: nn.Module, path: str) -> None:
    """Raise unless the module acts on each number separately."""
    known = (
        "ReLU, LeakyReLU, Softplus, GELU, ntkgp.networks.Erf, Sine, Cosine, Gaussian, Absolute, or any function of one number"
    )
    if any(True for _ in module.parameters()):
        raise ValueError(f"{_called(module, path)} has weights, and no known infinite limit; use {known}")
    u = torch.linspace(-3, 3, 24, dtype=torch.float64)
    try:
        whole, parts = module(u.view(4, 6)), [module(part.view(-1, 1)).flatten() for part in u.split(5)]
        same = whole.shape == (4, 6) and torch.allclose(whole.flatten(), torch.cat(parts), rtol=1e-12, atol=1e-14)
    except (RuntimeError, TypeError, ValueError, IndexError):
        same = False
    if not same:
        raise ValueError(f"{_called(module, path)} does not act on each number separately, and has no known limit; use {known}")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _called(module: nn.Module, path: str) -> str:
    return f"layer {path!r} ({type(module).__name__})" if path else f"the layer {type(module).__name__}"
