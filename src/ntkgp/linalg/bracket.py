"""The certified lower bound on variances from a known part of the spectrum, and the rounding that certified bounds allow for.

With orthonormal V (P×K), VᵀGV = diag(λ), the coupling b = ‖GV − Vλ‖, a bound μ on the norm of G outside V and any η > 0,
``G ⪯ diag(λ + η, μ + b²/η)`` in the basis (V, V⊥). Inversion turns the order around: the posterior variance at x′ is at least
``φ(λ + η + 1)⁻¹φᵀ + (J′J′ᵀ − φφᵀ)/(μ + b²/η + 1)`` with φ = J′V. This holds for any V, converged or not.

The numbers V, λ, b and μ come from rounded products. They are exact for some Ĝ with ‖Ĝ − G‖ ≤ δ, so G ⪯ Ĝ + δ, and δ adds to
the 1. J′ is rounded too; the square roots of both bounds change by at most the error of J′, because H⁻¹ ⪯ I.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

ROUNDINGS = 256  # allowed error of a row of J, or of a sum over it, in rounding units and relative to its norm


@dataclass(frozen=True)
class Bracket:
    """The known part of the spectrum of G, in units of the noise.

    Example:
        >>> import torch
        >>> Bracket(torch.tensor([9.0]), coupling=0.0, tail=1.0).lower(torch.tensor([[3.0]]), torch.tensor([11.0]))
        tensor([1.9000])
    """

    values: Float[Tensor, "K"]  # λ, decreasing
    coupling: float  # b
    tail: float  # μ
    rounding: float = 0.0  # δ
    unit: float = 0.0  # relative rounding unit of J

    @property
    def slack(self) -> float:
        """How loose the lower bound is, in units of the noise: from directions outside the head, and not converged ones."""
        return self.coupling + self.tail

    def lower(self, features: Float[Tensor, "M K"], prior: Float[Tensor, "M"]) -> Float[Tensor, "M"]:
        """The lower bound on each variance, from φ = J′V and the prior variance: the best over a few η."""
        squares, error = features.square(), ROUNDINGS * self.unit
        outside = (prior * (1 - error) - squares.sum(dim=1)).clamp_min(0)
        b, one = self.coupling, 1 + self.rounding
        etas = [0.0] if b == 0 else [b * 10.0**power for power in (-2, -1, 0, 1)] + [b * b / (1 + self.tail)]
        bounds = [squares @ (1 / (self.values + eta + one)) + outside / (self.tail + (b * b / eta if eta else 0.0) + one)
                  for eta in etas]  # fmt: skip
        best = torch.stack(bounds).amax(dim=0)
        return (best.sqrt() - error * prior.sqrt()).clamp_min(0).square() if error else best


def rounded_up(
    upper: Float[Tensor, "M"], answer: Float[Tensor, "M"], size: Float[Tensor, "M"], rounding: float, unit: float
) -> Float[Tensor, "M"]:
    """An upper bound on variances, raised by what rounding may have taken from it; never negative.

    The bound is the squared error of an estimator of J′Δ from the data, ``‖J′ − cᵀVᵀG‖² + cᵀVᵀGVc``, for some c.

    Args:
        upper: the computed bound.
        answer: ‖c‖ at each query.
        size: the sum of the terms whose differences give the bound.
        rounding: δ, the error of G.
        unit: relative rounding unit of J.
    """
    moved = rounding * answer
    upper = upper.clamp_min(0) + ROUNDINGS * unit * size
    return upper + 2 * upper.sqrt() * moved + moved.square() + moved * answer
