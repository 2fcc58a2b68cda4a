"""A referee in high precision: the posterior of given Jacobians in exact and many-digit arithmetic, without the library.

Products of float64 numbers are added up as integers, without rounding; the linear system is solved by mpmath with as many
digits as its condition asks for. What the answers differ by is then the fault of whoever is judged.
"""

import math
from dataclasses import dataclass

import mpmath
import numpy as np
import torch
from torch import Tensor

DIGITS = 40  # beside those that the condition of the system eats


def exact_product(a: Tensor, b: Tensor) -> list[list[mpmath.mpf]]:
    """A Bᵀ without rounding."""
    (left, up), (right, down) = _integers(a), _integers(b)
    return [[mpmath.ldexp(mpmath.mpf(int(value)), -(up + down)) for value in row] for row in left @ right.T]


def _integers(t: Tensor) -> tuple[np.ndarray, int]:
    """Whole numbers n and a k with t = n / 2ᵏ."""
    mantissa, exponent = np.frexp(t.detach().double().numpy())
    shift = int(exponent.min(initial=0)) - 53
    whole = np.vectorize(lambda m, e: int(math.ldexp(m, 53)) << int(e - 53 - shift), otypes=[object])
    return whole(mantissa, exponent) if t.numel() else mantissa.astype(object), -shift


@dataclass(frozen=True)
class Precise:
    """Mean and covariance of y = JΔ + noise at query points, Δ ~ N(0, I); rounded to float64 once, at the end."""

    mean: Tensor
    covariance: Tensor

    @property
    def variance(self) -> Tensor:
        return self.covariance.diagonal()


def posterior(train: Tensor, query: Tensor, residual: Tensor, noise: Tensor | float) -> Precise:
    """The posterior from Jacobians (n×P and m×P), residuals and noise variances of n observations."""
    n, P = train.shape
    noise = noise.double() if isinstance(noise, Tensor) else torch.full((n,), noise, dtype=torch.float64)
    span = math.log10(max(float(train.abs().max()) ** 2 * n, 1e-300)) - math.log10(float(noise.min()))
    with mpmath.workdps(DIGITS + 2 * max(0, math.ceil(span))):
        by_weights = n > P and bool((noise == noise[0]).all())
        mean, covariance = (_in_weights if by_weights else _in_outputs)(train, query, residual, noise)
        rounded = [float(value) for value in mean]
        return Precise(torch.tensor(rounded, dtype=torch.float64), torch.tensor(covariance, dtype=torch.float64))


def posterior_of_rows(train: list[list], query: list[list], residual: Tensor, noise: Tensor) -> tuple[list, list]:
    """Mean and variances from Jacobians that are lists of many-digit numbers; rounded to float64 once, at the end."""
    largest = max((abs(value) for row in train for value in row), default=mpmath.mpf(0))
    span = mpmath.log10(max(largest**2 * len(train), mpmath.mpf("1e-300"))) - math.log10(float(noise.min()))
    with mpmath.workdps(DIGITS + 2 * max(0, math.ceil(span))):
        kernel, cross, prior = ([[mpmath.fdot(a, b) for b in right] for a in left]
                                for left, right in ((train, train), (query, train), (query, query)))  # fmt: skip
        mean, covariance = _solved(kernel, cross, prior, residual, noise)
        return [float(value) for value in mean], [covariance[k][k] for k in range(len(query))]


def _in_outputs(train: Tensor, query: Tensor, residual: Tensor, noise: Tensor) -> tuple[list, list]:
    """K(x′,x)(K + σ²)⁻¹."""
    products = exact_product(train, train), exact_product(query, train), exact_product(query, query)
    return _solved(*products, residual, noise)


def _solved(A: list[list], cross: list[list], prior: list[list], residual: Tensor, noise: Tensor) -> tuple[list, list]:
    """The same from the kernel matrices."""
    for k, value in enumerate(noise.tolist()):
        A[k][k] += mpmath.mpf(value)
    factor = _cholesky(A)
    half = [_forward(factor, row) for row in cross]
    r = _forward(factor, [mpmath.mpf(v) for v in residual.tolist()])
    return [mpmath.fdot(row, r) for row in half], [
        [float(prior[i][j] - mpmath.fdot(half[i], half[j])) for j in range(len(half))] for i in range(len(half))
    ]


def _in_weights(train: Tensor, query: Tensor, residual: Tensor, noise: Tensor) -> tuple[list, list]:
    """J′(JᵀJ/σ² + I)⁻¹: the smaller system where there are more observations than parameters; one noise for all."""
    variance = mpmath.mpf(float(noise[0]))
    G = [[value / variance + (i == j) for j, value in enumerate(row)] for i, row in enumerate(exact_product(train.T, train.T))]
    right = [row[0] / variance for row in exact_product(train.T, residual.reshape(1, -1))]
    factor = _cholesky(G)
    half = [_forward(factor, [mpmath.mpf(v) for v in row]) for row in query.double().tolist()]
    r = _forward(factor, right)
    return [mpmath.fdot(row, r) for row in half], [
        [float(mpmath.fdot(half[i], half[j])) for j in range(len(half))] for i in range(len(half))
    ]


def _cholesky(A: list[list]) -> list[list]:
    """The rows of L. mpmath's own takes numbers below its rounding unit for zero, whatever the scale of the matrix."""
    L: list[list] = []
    for i, row in enumerate(A):
        new = _forward(L, row[:i])
        L.append([*new, mpmath.sqrt(row[i] - mpmath.fdot(new, new))])
    return L


def _forward(L: list[list], b: list) -> list:
    """L⁻¹ b."""
    x: list = []
    for i, value in enumerate(b):
        x.append((value - mpmath.fdot(L[i][:i], x)) / L[i][i])
    return x
