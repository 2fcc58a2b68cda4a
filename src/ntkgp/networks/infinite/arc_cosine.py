"""The moments of ReLU-like activations: the arc-cosine kernels of Cho and Saul (2009).

For (u, u′) ~ N(0, [[a, c], [c, b]]) with angle θ = arccos(c/√(ab)),
``E[relu(u) relu(u′)] = (√(ab) sin θ + (π − θ) c)/2π`` and ``E[relu′(u) relu′(u′)] = (π − θ)/2π``.
"""

import math
from typing import Any

import torch
from torch import Tensor

COINCIDE = 4.0  # points whose correlation is this many rounding units below 1 count as the same point


class ArcCosine(torch.autograd.Function):
    """Both moments, with derivatives that stay finite where points coincide: there the angle has none, and counts as constant.

    By Price's theorem the derivative of the first moment by c is the second moment.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Both moments."""
        tiny, eps = torch.finfo(c.dtype).tiny, torch.finfo(c.dtype).eps
        norm = a.sqrt() * b.sqrt()
        cosine = (c / norm.clamp_min(tiny)).mul_(1 + COINCIDE * eps).clamp_(-1.0, 1.0)
        sine = torch.addcmul(torch.ones_like(cosine), cosine, cosine, value=-1).sqrt_()
        slope = torch.atan2(sine, cosine).neg_().add_(math.pi).div_(2 * math.pi)
        value = torch.addcmul(slope * c, norm, sine, value=0.5 / math.pi)
        ctx.save_for_backward(a, b, norm, cosine, sine, slope)
        return value, slope

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The gradient by a, b and c."""
        by_value, by_slope = gradients
        a, b, norm, cosine, sine, slope = ctx.saved_tensors
        tiny = torch.finfo(norm.dtype).tiny
        # 1/(2π norm sine), or 0 where the angle has no derivative: sine is 0 or at least a rounding unit's root.
        inverse = torch.addcmul(torch.full_like(sine, tiny**0.5), sine, sine).mul_(norm.clamp_min(tiny**0.5)).reciprocal_()
        turn = inverse.mul_(sine).mul_(by_slope).div_(2 * math.pi)  # by the cosine, over √(ab)
        by_c = torch.addcmul(turn, by_value, slope) if ctx.needs_input_grad[2] else None
        if not (ctx.needs_input_grad[0] or ctx.needs_input_grad[1]):
            return None, None, by_c
        by_norm = (by_value * sine).div_(2 * math.pi).addcmul_(turn, cosine, value=-1).mul_(norm)
        by_a, by_b = (by_norm.sum_to_size(part.shape) / (2 * part.clamp_min(tiny)) for part in (a, b))
        return by_a, by_b, by_c
