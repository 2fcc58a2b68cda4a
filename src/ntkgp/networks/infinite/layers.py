"""Layers of networks of infinite width."""

import math

import torch
from torch import Tensor, nn

from ntkgp._system.check_options import check_positive


class InfiniteLinear(nn.Module):
    """:class:`NTKLinear` in the limit of infinite width. It has no weights; its parameters say how they would be drawn.

    A network is infinite if its layers between activations are: ``nn.Sequential(InfiniteLinear(3, math.inf), nn.ReLU(),
    InfiniteLinear(math.inf, 1))``. Such a network has a kernel and a posterior, and no output of its own.

    Args:
        in_features: number of inputs: finite after the inputs, ``math.inf`` after an activation.
        out_features: number of outputs: ``math.inf`` before an activation, finite at the end.
        bias: whether the layer has a bias.
        weight_std: standard deviation of the weights.
        bias_std: standard deviation of the bias.
        output_scale: constant factor, the paper's c_out.

    Example:
        >>> import math, torch, ntkgp
        >>> net = torch.nn.Sequential(InfiniteLinear(3, math.inf), torch.nn.ReLU(), InfiniteLinear(math.inf, 1, bias=False))
        >>> ntkgp.kernel(net, torch.ones(2, 3)).round(decimals=2)
        tensor([[2., 2.],
                [2., 2.]])
    """

    def __init__(
        self,
        in_features: float,
        out_features: float,
        bias: bool = True,
        *,
        weight_std: float = 1.0,
        bias_std: float = 1.0,
        output_scale: float = 1.0,
    ):
        super().__init__()
        for name, size in (("in_features", in_features), ("out_features", out_features)):
            if size != math.inf and (int(size) != size or size < 1):
                raise ValueError(f"{name} must be a whole number from 1, or math.inf, got {size}")
        if math.isfinite(in_features) and math.isfinite(out_features):
            raise ValueError("in_features or out_features must be math.inf; use NTKLinear for a layer of finite width")
        check_positive("InfiniteLinear", weight_std=weight_std, bias_std=bias_std, output_scale=output_scale)
        self.in_features, self.out_features, self.output_scale = in_features, out_features, float(output_scale)
        self.weight_std = nn.Parameter(torch.tensor(float(weight_std)))
        self.bias_std = nn.Parameter(torch.tensor(float(bias_std))) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """An infinite network has no output of its own: raises."""
        raise TypeError(
            "a network of infinite width has no weights, so it cannot be called; ntkgp.fit gives its posterior, and "
            "ntkgp.kernel its kernel"
        )

    def extra_repr(self) -> str:
        """The sizes in the format of ``nn.Linear``."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias_std is not None}"


def is_infinite(module: nn.Module) -> bool:
    """Whether a network, or a part of it, has infinite width."""
    return any(isinstance(part, InfiniteLinear) for part in module.modules())
