"""A finite network of the same structure: it stands for the limit where functions are needed, and not only their covariance."""

import copy
import math

import torch
from torch import nn

from ntkgp.networks.infinite.layers import InfiniteLinear
from ntkgp.networks.layers import NTKLinear


def finite_copy(module: nn.Module, width: int) -> nn.Module:
    """The network with layers of this width in place of infinite ones. Its weights have the paths of the infinite layers.

    Example:
        >>> import math, torch, ntkgp
        >>> finite_copy(ntkgp.mlp(2, width=math.inf), 16)(torch.zeros(3, 2)).shape
        torch.Size([3, 1])
    """
    if isinstance(module, InfiniteLinear):
        sizes = [width if math.isinf(size) else int(size) for size in (module.in_features, module.out_features)]
        weight, bias = module.weight_std.detach(), module.bias_std
        made = NTKLinear(
            *sizes, bias=bias is not None, weight_std=float(weight), bias_std=1.0 if bias is None else float(bias.detach()),
            output_scale=module.output_scale, generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        return made.to(weight.device, weight.dtype)
    other = copy.copy(module)
    other._modules = {name: None if part is None else finite_copy(part, width) for name, part in module._modules.items()}
    return copy.deepcopy(other)
