"""The paper's network (appendix "Network Initialization")."""

import math

import torch
from torch import nn

from ntkgp.networks.infinite.layers import InfiniteLinear
from ntkgp.networks.layers import NTKLinear


def mlp(
    in_features: int,
    out_features: int = 1,
    width: float = 512,
    depth: int = 2,
    activation: nn.Module | None = None,
    output_scale: float = 3.5,
    weight_std: float = 1.0,
    bias_std: float = 1.0,
    scaling: str = "fan_in",
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """The paper's network: `depth` hidden layers of `width`, softplus with β = 87.09, output scaled by 3.5, no output bias.

    Args:
        in_features: number of inputs D.
        out_features: number of outputs C.
        width: size of each hidden layer; ``math.inf`` for the limit, a network with a kernel instead of weights.
        depth: number of hidden layers.
        activation: the non-linearity; None uses ``nn.Softplus(beta=87.09)``.
        output_scale: c_out of the paper.
        weight_std: σ_w of the paper.
        bias_std: σ_b of the paper.
        scaling: ``"fan_in"`` or ``"own_width"``, see :class:`NTKLinear`.
        generator: source of the random weights; None uses torch's global generator.

    Example:
        >>> import torch
        >>> net = mlp(in_features=2, width=16, generator=torch.Generator().manual_seed(0))
        >>> net(torch.zeros(5, 2)).shape
        torch.Size([5, 1])
    """
    if min(in_features, out_features, width, depth) < 1:
        sizes = (in_features, out_features, width, depth)
        raise ValueError(f"in_features, out_features, width and depth must be at least 1, got {sizes}")
    activation = nn.Softplus(beta=87.09) if activation is None else activation  # pyright: ignore[reportArgumentType]
    if math.isinf(width):
        if scaling != "fan_in":
            raise ValueError(
                f"a network of infinite width needs scaling='fan_in', got {scaling!r}: otherwise its kernel is infinite"
            )
        return _infinite_mlp(in_features, out_features, depth, activation, output_scale, weight_std, bias_std)
    if width != int(width):
        raise ValueError(f"width must be a whole number or math.inf, got {width}")
    width = int(width)
    stds = {"weight_std": weight_std, "bias_std": bias_std, "scaling": scaling, "generator": generator}
    layers: list[nn.Module] = []
    for fan_in in [in_features] + [width] * (depth - 1):
        layers += [NTKLinear(fan_in, width, **stds), activation]
    return nn.Sequential(*layers, NTKLinear(width, out_features, bias=False, output_scale=output_scale, **stds))


def _infinite_mlp(
    in_features: int,
    out_features: int,
    depth: int,
    activation: nn.Module,
    output_scale: float,
    weight_std: float,
    bias_std: float,
) -> nn.Sequential:
    """The limit of :func:`mlp`."""
    layers: list[nn.Module] = []
    for fan_in in [in_features] + [math.inf] * (depth - 1):
        layers += [InfiniteLinear(fan_in, math.inf, weight_std=weight_std, bias_std=bias_std), activation]
    last = InfiniteLinear(math.inf, out_features, bias=False, weight_std=weight_std, output_scale=output_scale)
    return nn.Sequential(*layers, last)
