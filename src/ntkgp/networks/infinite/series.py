"""The moments of any elementwise activation, by its Hermite series.

With h_k(a) = E[φ(√a z) He_k(z)]/√k!, z standard normal, Mehler's formula gives ``E[φ(u) φ(u′)] = Σ_k h_k(a) h_k(b) ρᵏ`` with
ρ = c/√(ab), and the same with φ′ gives the other moment. Each h_k is a one-dimensional Gauss quadrature per point. What a
series of K terms leaves out is known exactly at ρ = 1, T(a) = E[φ(√a z)²] − Σ_{k<K} h_k(a)²; so the series is continued by
√(T(a)T(b)) ρᴷ. The result is positive semi-definite, exact where points coincide, and off by at most √(T(a)T(b)) elsewhere.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.errors import NumericalWarning

MOST_TERMS = 128
ENOUGH = 1e-12  # share of E[φ²] that a series may leave out without a remainder
SILENT_ERROR = 1e-6  # largest relative error of a moment without a warning
RANGE, PANELS, PANEL_NODES = (
    26.0,
    32,
    24,
)  # Gauss–Legendre panels on [−RANGE, RANGE]; one edge at 0, where activations have kinks

Activation = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Series:
    """The Hermite coefficients of a function at some variances, and the mean of its square."""

    coefficients: Float[Tensor, "*points terms"]
    square: Float[Tensor, "*points"]

    @classmethod
    def pair(cls, activation: Activation, a: Float[Tensor, "*points"]) -> "tuple[Series, Series]":
        """The series of φ and of φ′. Cost: 768 values of φ per point, and a product with a 768 × 128 matrix."""
        nodes, basis, weights = _basis(a.dtype, a.device)
        with torch.enable_grad():
            u = _root(a).unsqueeze(-1) * nodes
            u = u if u.requires_grad else u.requires_grad_()
            values = activation(u)
            slopes = torch.autograd.grad(values.sum(), u, create_graph=a.requires_grad)[0]
        parts = (part if a.requires_grad else part.detach() for part in (values, slopes))
        first, second = (cls(part @ basis, part.square() @ weights) for part in parts)
        return first, second

    def terms(self) -> int:
        """How many terms leave out too little to matter, at most MOST_TERMS."""
        with torch.no_grad():
            left = self.square.unsqueeze(-1) - self.coefficients.square().cumsum(dim=-1)
            enough = (left <= ENOUGH * self.square.unsqueeze(-1)).flatten(0, -2).all(dim=0)
        return int(enough.int().argmax()) + 1 if bool(enough.any()) else MOST_TERMS

    def rest(self, terms: int) -> Float[Tensor, "*points"]:
        """√T: what a series of `terms` terms leaves out."""
        left = self.square - self.coefficients[..., :terms].square().sum(dim=-1)
        matters = left > ENOUGH * self.square
        return torch.where(matters, torch.where(matters, left, 1.0).sqrt(), 0.0)

    @torch.no_grad()
    def error(self) -> float:
        """A bound on the error of the longest series, relative to the mean square of the function."""
        return float((self.rest(MOST_TERMS).square() / self.square.clamp_min(torch.finfo(self.square.dtype).tiny)).max())

    def product(self, other: "Series", cosine: Tensor) -> Tensor:
        """Σ_k h_k(a) h_k(b) ρᵏ by Horner's rule."""
        terms = max(self.terms(), other.terms())
        out = self.rest(terms) * other.rest(terms)
        if terms == MOST_TERMS and (error := max(self.error(), other.error())) > SILENT_ERROR:
            warnings.warn(
                f"the kernel of this activation may be off by {error:.0e} (relative) where points are close but not equal: at "
                "such variances its series is too short; lower weight_std, bias_std or the scale of x, or take an activation "
                "with a closed form, such as ntkgp.networks.Erf",
                NumericalWarning,
                stacklevel=2,
            )
        for k in range(terms - 1, -1, -1):
            out = torch.addcmul(self.coefficients[..., k] * other.coefficients[..., k], out, cosine)
        return out


def series_moments(activation: Activation, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """E[φ(u) φ(u′)] and E[φ′(u) φ′(u′)] for variances a and b and covariance c, broadcast against each other.

    Cost: that of :meth:`Series.pair` per point, and K operations per pair of points, K ≤ 128 as accuracy needs.
    """
    cosine = (c / (_root(a) * _root(b))).clamp(-1.0, 1.0)
    pairs = zip(Series.pair(activation, a), Series.pair(activation, b), strict=True)
    value, slope = (one.product(other, cosine) for one, other in pairs)
    return value, slope


def series_error(activation: Activation, a: Float[Tensor, "n"]) -> tuple[float, float]:
    """Bounds on the errors of both moments at these variances, relative to E[φ²] and E[φ′²]."""
    one, other = Series.pair(activation, a.detach())
    return one.error(), other.error()


def _root(a: Tensor) -> Tensor:
    """√a, with a finite derivative at zero."""
    return a.clamp_min(torch.finfo(a.dtype).tiny).sqrt()


@cache
def _basis(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes z, the matrix that gives the coefficients of a function from its values at z, and the weights of its mean."""
    nodes, weights = np.polynomial.legendre.leggauss(PANEL_NODES)
    half, edges = RANGE / PANELS, np.linspace(-RANGE, RANGE, PANELS + 1)
    z = ((edges[:-1] + edges[1:])[:, None] / 2 + half * nodes).ravel()
    root = (
        np.exp(-(z**2) / 4) / (2 * math.pi) ** 0.25
    )  # of the normal density: its square would make Hermite polynomials overflow
    columns = [root, z * root]
    for k in range(2, MOST_TERMS):
        columns.append((z * columns[-1] - math.sqrt(k - 1) * columns[-2]) / math.sqrt(k))
    measure = np.tile(weights * half, PANELS)
    found = z, np.stack(columns, axis=1) * (measure * root)[:, None], measure * root**2
    return tuple(torch.from_numpy(part).to(device, dtype) for part in found)  # pyright: ignore[reportReturnType]
