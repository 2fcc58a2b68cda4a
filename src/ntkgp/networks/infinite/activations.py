"""The moments of activations: E[φ(u) φ(u′)] and E[φ′(u) φ′(u′)] for Gaussian (u, u′), in closed form.

Each function takes the variances a of u and b of u′ and their covariance c, broadcast against each other.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ntkgp.networks.activations import Absolute, Cosine, Erf, Gaussian, Sine
from ntkgp.networks.infinite.arc_cosine import ArcCosine
from ntkgp.networks.infinite.arc_sine import ErfMoments

Moments = tuple[Tensor, Tensor]  # E[φ(u) φ(u′)], E[φ′(u) φ′(u′)]
MomentsOf = Callable[[Tensor, Tensor, Tensor], Moments]

# softplus(u) with steepness β is relu(u − t) averaged over t = x·Z/β, with Z standard normal and x twice a Kolmogorov variable.
# Nodes and weights of Gauss quadrature over x: few for a steep softplus, for which x matters little, and more for the others.
STEEP = 50.0
STEEP_NODES = (
    (1.217893271339828, 2.014677126206403, 3.210370420774571),
    (0.4279516471764364, 0.5187151456463437, 0.05333320717724744),
)
NODES = (
    (0.960550263627773, 1.3929851448987454, 1.9887204998516226, 2.7531698939188805, 3.6769908396565403, 4.82680051582359),
    (
        0.09258778315043026,
        0.421443176875311,
        0.37244235529437214,
        0.10476788304304407,
        0.008646213319733913,
        0.00011258831713569478,
    ),
)


def moments_of(activation: nn.Module) -> MomentsOf | None:
    """The closed form of an activation; None if there is none here."""
    kind = type(activation)
    if kind is nn.LeakyReLU:
        return lambda a, b, c: leaky_relu(a, b, c, activation.negative_slope)  # pyright: ignore[reportArgumentType]
    if kind is nn.Softplus:
        return lambda a, b, c: softplus(a, b, c, float(activation.beta))  # pyright: ignore[reportArgumentType]
    if kind is nn.GELU and activation.approximate != "none":
        return None
    return CLOSED_FORMS.get(kind)


def identity(a: Tensor, b: Tensor, c: Tensor) -> Moments:
    """φ(u) = u."""
    return c, torch.ones_like(c)


def relu(a: Tensor, b: Tensor, c: Tensor) -> Moments:
    """φ(u) = max(u, 0)."""
    return ArcCosine.apply(a, b, c)  # pyright: ignore[reportReturnType]


def leaky_relu(a: Tensor, b: Tensor, c: Tensor, slope: float) -> Moments:
    """φ(u) = slope·u + (1 − slope)·relu(u)."""
    value, derivative = relu(a, b, c)
    rest = (1 - slope) ** 2
    return slope * c + rest * value, slope + rest * derivative


def softplus(a: Tensor, b: Tensor, c: Tensor, beta: float) -> Moments:
    """φ(u) = log(1 + exp(βu))/β: ReLU of u with independent noise, so the variances grow and c stays as it is."""
    value, derivative = torch.zeros_like(c), torch.zeros_like(c)
    quadrature = list(zip(*(STEEP_NODES if beta >= STEEP else NODES), strict=True))
    for x, p in quadrature:
        for y, q in quadrature:
            one, other = relu(a + (x / beta) ** 2, b + (y / beta) ** 2, c)
            value, derivative = value + p * q * one, derivative + p * q * other
    return value, derivative


def erf(a: Tensor, b: Tensor, c: Tensor) -> Moments:
    """φ the error function (Williams 1998)."""
    return ErfMoments.apply(a, b, c)  # pyright: ignore[reportReturnType]


def gelu(a: Tensor, b: Tensor, c: Tensor) -> Moments:
    """φ(u) = u Φ(u), Φ the normal distribution function."""
    p, ab = (1 + a) * (1 + b), a * b
    root = (1 + a + b + _determinant(a, b, c)).sqrt()
    angle, square = torch.atan2(c, root), c * c
    inner = square + ab * root.square()
    value = (inner / (p * root) + c * angle) / (2 * math.pi) + c / 4
    slope = 2 * c * (1 - ab) / (p * root) + c * inner / (p * root**3) + angle + c / root
    return value, slope / (2 * math.pi) + 0.25


def sine(a: Tensor, b: Tensor, c: Tensor) -> Moments:
    """φ(u) = sin u."""
    near, far = _waves(a, b, c)
    return near - far, near + far


def cosine(a: Tensor, b: Tensor, c: Tensor) -> Moments:
    """φ(u) = cos u."""
    near, far = _waves(a, b, c)
    return near + far, near - far


def gaussian(a: Tensor, b: Tensor, c: Tensor) -> Moments:
    """The bump φ(u) = exp(−u²/2)."""
    value = (1 + a + b + _determinant(a, b, c)).rsqrt()
    return value, c * value**3


def _determinant(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Ab − c², which rounding must not make negative."""
    return torch.addcmul(a * b, c, c, value=-1).clamp_min(0)


def _waves(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """½ E[cos(u − u′)] and ½ E[cos(u + u′)]; neither can overflow."""
    mean = (a + b) / 2
    return 0.5 * (c - mean).clamp_max(0).exp(), 0.5 * (-c - mean).clamp_max(0).exp()


CLOSED_FORMS: dict[type[nn.Module], MomentsOf] = {
    nn.ReLU: relu,
    Absolute: lambda a, b, c: leaky_relu(a, b, c, -1.0),
    nn.GELU: gelu,
    nn.Identity: identity,
    Cosine: cosine,
    Erf: erf,
    Gaussian: gaussian,
    Sine: sine,
}
