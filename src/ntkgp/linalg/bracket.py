"""The certified lower bound on variances from a known part of the spectrum.

With orthonormal V (P×K), VᵀGV = diag(λ), the coupling b = ‖GV − Vλ‖, a bound μ on the norm of G outside V and any η > 0,
``G ⪯ diag(λ + η, μ + b²/η)`` in the basis (V, V⊥). Inversion turns the order around: the posterior variance at x′ is at least
``φ(λ + η + 1)⁻¹φᵀ + (J′J′ᵀ − φφᵀ)/(μ + b²/η + 1)`` with φ = J′V. This holds for any V, converged or not.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


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

    @property
    def slack(self) -> float:
        """How loose the lower bound is, in units of the noise: from directions outside the head, and not converged ones."""
        return self.coupling + self.tail

    def lower(self, features: Float[Tensor, "M K"], prior: Float[Tensor, "M"]) -> Float[Tensor, "M"]:
        """The lower bound on each variance, from φ = J′V and the prior variance: the best over a few η."""
        squares = features.square()
        outside = (prior - squares.sum(dim=1)).clamp_min(0)
        b = self.coupling
        etas = [0.0] if b == 0 else [b * 10.0**power for power in (-2, -1, 0, 1)] + [b * b / (1 + self.tail)]
        bounds = [squares @ (1 / (self.values + eta + 1)) + outside / (self.tail + (b * b / eta if eta else 0.0) + 1)
                  for eta in etas]  # fmt: skip
        return torch.stack(bounds).amax(dim=0)
