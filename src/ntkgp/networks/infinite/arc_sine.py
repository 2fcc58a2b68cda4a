"""The moments of the error function: the arc-sine kernel of Williams (1998).

With ``r = √((1 + 2a)(1 + 2b) − 4c²)``: ``E[erf(u) erf(u′)] = 2/π·arctan(2c/r)`` and ``E[erf′(u) erf′(u′)] = 4/(π r)``.
"""

import math
from typing import Any

import torch
from torch import Tensor


class ErfMoments(torch.autograd.Function):
    """Both moments. Their derivatives are rational in r, so the gradient needs no transcendental function."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Both moments."""
        rest = torch.addcmul(a * b, c, c, value=-1).clamp_(min=0)  # negative only by rounding
        square = rest.mul_(4).add_(1 + 2 * a).add_(2 * b)
        root = square.sqrt()
        slope = root.reciprocal().mul_(4 / math.pi)
        ctx.save_for_backward(a, b, c, slope)
        return torch.atan2(2 * c, root).mul_(2 / math.pi), slope

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The gradient by a, b and c: with s the slope, that of the value is s by c, and −cs/(1 + 2a) by a."""
        by_value, by_slope = gradients
        a, b, c, slope = ctx.saved_tensors
        inner = (slope * slope).mul_(slope).mul_(by_slope).mul_((math.pi / 4) ** 2)  # by −r²/2
        by_c = torch.addcmul((4 * inner).mul_(c), by_value, slope) if ctx.needs_input_grad[2] else None
        if not (ctx.needs_input_grad[0] or ctx.needs_input_grad[1]):
            return None, None, by_c
        by_both = (by_value * slope).mul_(c).neg_()
        found = []
        for mine, other in ((a, b), (b, a)):
            found.append((by_both / (1 + 2 * mine)).sub_(inner * (1 + 2 * other)).sum_to_size(mine.shape))
        return found[0], found[1], by_c
