"""Moments of activations by numerical integration, and the kernel of an infinite network. Imports nothing of the library."""

import math
from collections.abc import Callable

import numpy as np

Function = Callable[[np.ndarray], np.ndarray]
NODES, WEIGHTS = np.polynomial.legendre.leggauss(24)
REACH = 11.0  # standard deviations: beyond, a normal density is below 1e-26
COLLAPSED = 1e-12  # with 1 − ρ² below this, both variables are one


def panels(edges: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Gauss–Legendre nodes and weights on each interval between consecutive edges."""
    ends = np.array(edges)
    half, middle = (ends[1:] - ends[:-1]) / 2, (ends[1:] + ends[:-1]) / 2
    return (middle[:, None] + half[:, None] * NODES).ravel(), (half[:, None] * WEIGHTS).ravel()


def normal_panels(kinks: list[float], finest: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of the standard normal distribution; panels end at the kinks, and are finest around them."""
    edges = set(np.linspace(-REACH, REACH, 23).tolist())
    for kink in kinks:
        near = [kink + sign * finest * 2.0**k for sign in (-1, 1) for k in range(60) if finest * 2.0**k < 2 * REACH]
        edges |= {edge for edge in [kink, *near] if -REACH < edge < REACH}
    z, w = panels(sorted(edges))
    return z, w * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def moments(functions: list[Function], a: float, b: float, rho: float) -> list[float]:
    """E[f(u) f(u′)] of each function, for normal u, u′ of variances a, b and correlation ρ; functions may have a kink at 0."""
    rest = max(0.0, 1 - rho * rho)
    spread = math.sqrt(rest) if rest > COLLAPSED else 0.0
    z, w = normal_panels([0.0], max(spread, 1e-9) / 8)
    means = math.sqrt(b) * rho * z
    if spread == 0:
        inner = [f(means) for f in functions]
    else:
        grids = [normal_panels([-mean / (math.sqrt(b) * spread)], 0.5) for mean in means]
        at = np.concatenate([mean + math.sqrt(b) * spread * grid for mean, (grid, _) in zip(means, grids, strict=True)])
        weights = np.concatenate([weight for _, weight in grids])
        starts = np.cumsum([0, *(len(grid) for grid, _ in grids[:-1])])
        inner = [np.add.reduceat(f(at) * weights, starts) for f in functions]
    return [float((w * f(math.sqrt(a) * z) * one).sum()) for f, one in zip(functions, inner, strict=True)]


def erf_kernel(x: np.ndarray, other: np.ndarray, depth: int, output_scale: float, variances: list[float]) -> np.ndarray:
    """The tangent kernel of an infinite network of erf with unit standard deviations; a prior variance per dense layer."""

    def dual(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p = (1 + 2 * a) * (1 + 2 * b)
        return 2 / np.pi * np.arcsin(2 * c / np.sqrt(p)), 4 / np.pi / np.sqrt(p - 4 * c * c)

    d = x.shape[1]
    a, b, c = (x * x).sum(1)[:, None] / d, (other * other).sum(1)[None] / d, x @ other.T / d
    tangent = variances[0] * (c + 1)
    a, b, c = a + 1, b + 1, c + 1
    for layer in range(1, depth + 1):
        value, slope = dual(a, b, c)
        one, two = dual(a, a, a)[0], dual(b, b, b)[0]
        scale, bias = (1.0, 1.0) if layer < depth else (output_scale**2, 0.0)
        tangent = scale * tangent * slope + variances[layer] * (scale * value + bias)
        a, b, c = scale * one + bias, scale * two + bias, scale * value + bias
    return tangent
