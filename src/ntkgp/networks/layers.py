"""Layers: linear in the NTK parametrisation, trigonometric inputs, input scales."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


def gaussian(*shape: int, generator: torch.Generator | None) -> Tensor:
    """Draw standard normal numbers on torch's default device, whatever the generator's device."""
    if generator is None:
        return torch.randn(*shape)
    return torch.randn(*shape, generator=generator, device=generator.device).to(torch.get_default_device())


class NTKLinear(nn.Module):
    """A linear layer that draws its weights from N(0, weight_std²) and scales them in the forward pass.

    Computes ``gain · W x + b``, with ``gain = output_scale / sqrt(n)``. Because the scale is outside the weights, the tangent
    kernel converges as the width grows (Jacot et al. 2018).

    Args:
        in_features: number of inputs.
        out_features: number of outputs.
        bias: whether the layer has b (the paper's output layer has none).
        weight_std: standard deviation of W at initialisation.
        bias_std: standard deviation of b at initialisation.
        output_scale: the paper's c_out, a constant factor.
        scaling: ``"fan_in"`` (n = in_features, the standard NTK parametrisation) or ``"own_width"`` (n = out_features, the
            literal reading of the paper; docs/paper.md says why it is not the default).
        generator: source of the random weights; None uses torch's global generator.

    Example:
        >>> import torch
        >>> layer = NTKLinear(3, 4, generator=torch.Generator().manual_seed(0))
        >>> layer(torch.ones(2, 3)).shape
        torch.Size([2, 4])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        weight_std: float = 1.0,
        bias_std: float = 1.0,
        output_scale: float = 1.0,
        scaling: str = "fan_in",
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        widths = {"fan_in": in_features, "own_width": out_features}
        if scaling not in widths:
            raise ValueError(f"scaling must be 'fan_in' or 'own_width', got {scaling!r}")
        self.in_features, self.out_features = in_features, out_features
        self.gain = output_scale / math.sqrt(widths[scaling])
        self.weight = nn.Parameter(gaussian(out_features, in_features, generator=generator) * weight_std)
        self.bias = nn.Parameter(gaussian(out_features, generator=generator) * bias_std) if bias else None

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """``gain · W x + b``."""
        # Scaling the activations costs less than scaling the weights: batches are smaller than W here.
        return F.linear(x * self.gain, self.weight, self.bias)

    def extra_repr(self) -> str:
        """The sizes in the format of ``nn.Linear``, and the gain."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}, gain={self.gain:.4g}"


class TrigonometricInputs(nn.Module):
    """The paper's input normalisation: maps each input to t in [0, π] and returns [sin t, cos t].

    Turns D inputs into 2D features. The features are periodic: two inputs that differ by twice the width of the range look the
    same, so the range should cover the queries, not only the training data.

    Args:
        low: lower end of the range: one number, or one per input.
        high: upper end of the range: one number, or one per input.

    Example:
        >>> import torch
        >>> TrigonometricInputs(-1.0, 1.0)(torch.tensor([[-1.0], [0.0]])).round(decimals=3)
        tensor([[0., 1.],
                [1., -0.]])
    """

    low: Tensor
    high: Tensor

    def __init__(self, low: float | Tensor, high: float | Tensor):
        super().__init__()
        self.register_buffer("low", torch.as_tensor(low, dtype=torch.get_default_dtype()).clone())
        self.register_buffer("high", torch.as_tensor(high, dtype=torch.get_default_dtype()).clone())
        if not bool((self.high > self.low).all()):
            raise ValueError(f"high must be above low for every input, got low={low}, high={high}")

    @classmethod
    def from_data(cls, x: Float[Tensor, "N D"], margin: float = 0.0) -> "TrigonometricInputs":
        """The range of each column of x, widened on both sides by `margin` times its width; constant columns get width 1."""
        low, high = x.min(dim=0).values, x.max(dim=0).values
        width = torch.where(high > low, high - low, torch.ones_like(low))
        return cls(low - margin * width, low + (1 + margin) * width)

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D2"]:
        """[sin t, cos t] with t = π (x − low) / (high − low)."""
        t = (x - self.low) / (self.high - self.low) * math.pi
        return torch.cat([torch.sin(t), torch.cos(t)], dim=-1)


class InputScales(nn.Module):
    """Multiplies each input feature by its scale. :func:`ntkgp.tune` learns the scales of every such layer of a module.

    Args:
        scales: positive, one per feature.

    Example:
        >>> import torch
        >>> InputScales(torch.tensor([2.0, 0.1]))(torch.ones(1, 2))
        tensor([[2.0000, 0.1000]])
    """

    scale: Tensor

    def __init__(self, scales: Float[Tensor, "D"]):
        super().__init__()
        if scales.ndim != 1 or not bool((torch.isfinite(scales) & (scales > 0)).all()):
            raise ValueError(f"scales must be one positive number per feature, got {scales}")
        self.register_buffer("scale", scales.detach().clone())

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """The scaled features."""
        return x * self.scale

    def extra_repr(self) -> str:
        """The number of features."""
        return f"features={len(self.scale)}"
