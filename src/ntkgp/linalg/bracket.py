"""The certified bracket: two covariances that enclose the true one, whatever the convergence of the SVD.

Whitened, σ² = 1. With a Ritz triplet (U, s, V) of J̃, so that J̃ᵀU = V s exactly, and φ = J′V:

* upper: the posterior after seeing only Uᵀỹ, ``J′J′ᵀ − φ diag(s²/(s²+1)) φᵀ``;
* lower: ``φ (A_V + (η+1) I)⁻¹ φᵀ + (J′J′ᵀ − φφᵀ) / (μ + b²/η + 1)``, where A_V = VᵀJ̃ᵀJ̃V, b bounds the coupling
  ‖VᵀJ̃ᵀJ̃(I − VVᵀ)‖, μ bounds ‖J̃(I − VVᵀ)‖², and η > 0 is free (η = 0 when b = 0).

The lower bound holds because ``J̃ᵀJ̃ ⪯ diag(A_V + η, μ + b²/η)`` in the basis (V, V⊥), and inversion turns the order around.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp.linalg.operator import Operator
from ntkgp.linalg.svd import PartialSVD


@dataclass(frozen=True)
class Bracket:
    """What the bounds need beside φ and the prior: computed once per posterior, by one pass with J̃ and one with J̃ᵀ."""

    s: Float[Tensor, "K"]
    projected: Float[Tensor, "K K"]
    coupling: float
    tail: float

    @classmethod
    def of(cls, operator: Operator, svd: PartialSVD, frobenius: float) -> "Bracket":
        """The bracket of a partial SVD of the operator, whose squared Frobenius norm is given.

        Cost: K products with A and K with Aᵀ; memory (n + m)·K.
        """
        image = operator.matmat(svd.v)
        leak = operator.rmatmat(image - svd.u * svd.s)
        leak = leak - svd.v @ (svd.v.T @ leak)
        # Both are sums of n·m squares: allow for their rounding, so that the bound stays one.
        rounding = torch.finfo(svd.s.dtype).eps * frobenius * 10
        tail = max(0.0, frobenius - float(image.square().sum())) + rounding
        return cls(svd.s, image.T @ image, float(leak.norm()), tail)

    def upper_weights(self) -> Float[Tensor, "K"]:
        """W with upper = J′J′ᵀ − φ diag(w) φᵀ."""
        return self.s.square() / (self.s.square() + 1)

    def lower(self, features: Float[Tensor, "M K"], prior: Float[Tensor, "M"]) -> Float[Tensor, "M"]:
        """The lower bound on each variance: the best over a few η."""
        outside = (prior - features.square().sum(dim=1)).clamp_min(0)
        eye = torch.eye(len(self.s), dtype=self.s.dtype, device=self.s.device)
        best = torch.zeros_like(prior)
        for eta in self._etas():
            factor = torch.linalg.cholesky(self.projected + (1 + eta) * eye)
            inside = torch.linalg.solve_triangular(factor, features.T, upper=False).square().sum(dim=0)
            best = torch.maximum(best, inside + outside / (self.tail + self.coupling**2 / eta + 1))
        return best

    def _etas(self) -> list[float]:
        """Trade-offs between the two terms; the last lets b²/η weigh no more than the tail does."""
        if self.coupling == 0:
            return [1e-300]
        return [self.coupling * 10.0**power for power in (-2, -1, 0)] + [self.coupling**2 / (1 + self.tail)]
