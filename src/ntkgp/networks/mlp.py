"""The paper's network (appendix "Network Initialization")."""

import torch
from torch import nn

from ntkgp.networks.layers import NTKLinear


def mlp(
    in_features: int,
    out_features: int = 1,
    width: int = 512,
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
        width: size of each hidden layer.
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
    stds = {"weight_std": weight_std, "bias_std": bias_std, "scaling": scaling, "generator": generator}
    layers: list[nn.Module] = []
    for fan_in in [in_features] + [width] * (depth - 1):
        layers += [NTKLinear(fan_in, width, **stds), activation]
    return nn.Sequential(*layers, NTKLinear(width, out_features, bias=False, output_scale=output_scale, **stds))
