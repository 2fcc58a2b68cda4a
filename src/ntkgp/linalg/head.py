"""The head: the top of the spectrum of G = AᵀA, found by products with G alone, and the certified bracket it gives.

A is the whitened Jacobian (σ² = 1); all vectors are over the weights, so nothing grows with the number of points. With
orthonormal V (P×K), VᵀGV = diag(λ) and the image B = GV, for any V however far from converged:

* upper: seeing only (AV)ᵀy leaves the covariance ``J′(I − B(BᵀB + λ)⁻¹Bᵀ)J′ᵀ``, which is ⪰ the posterior's;
* lower: from λ, the coupling ‖B − Vλ‖ and a bound on the norm of the rest (:mod:`ntkgp.linalg.bracket`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp.linalg.bracket import Bracket
from ntkgp.linalg.space import WHOLE, Space

Product = Callable[[Tensor], Tensor]  # v ↦ G v
FAILURE_PROBABILITY = 1e-10  # that the randomised bound on the rest of the spectrum is too small
PROBES, POWERS = 10, 4  # random vectors of that bound, and products with each


@dataclass(frozen=True)
class Head:
    """The K known singular directions, and the numbers that the bracket needs."""

    v: Float[Tensor, "P K"]
    image: Float[Tensor, "P K"]  # G v
    values: Float[Tensor, "K"]  # λ = diag(VᵀGV), decreasing: squared singular values if converged
    coupling: float  # ‖G V − V λ‖
    tail: float  # a bound on the norm of G outside V
    space: Space = field(default=WHOLE, repr=False, compare=False, metadata={"stored": False})

    @classmethod
    def of(
        cls,
        product: Product,
        v: Float[Tensor, "P Q"],
        image: Float[Tensor, "P Q"],
        trace: float,
        rank: int | None = None,
        space: Space = WHOLE,
        length: int | None = None,
    ) -> "Head":
        """The first `rank` Ritz vectors of a subspace, from an orthonormal basis, its image under G, and the trace of G.

        If the rows of v are split over processes, `space` sums over the processes and `length` is P.

        Cost: POWERS products with PROBES columns, for the bound on the rest of the spectrum.
        """
        projected = space.gram(v, image)
        values, rotation = torch.linalg.eigh((projected + projected.T) / 2)
        values, rotation = values.flip(0).clamp_min(0)[:rank], rotation.flip(1)[:, :rank]
        v, image = v @ rotation, image @ rotation
        leak = image - v * values
        coupling = float(torch.linalg.matrix_norm(space.gram(leak, leak), 2).sqrt())
        rounding = 10 * torch.finfo(v.dtype).eps * trace
        rest = max(0.0, trace - float(values.sum())) + rounding
        outside = _norm_outside(product, v, space, len(v) if length is None else length)
        return cls(v, image, values, coupling, min(rest, outside + rounding), space)

    @property
    def rank(self) -> int:
        """K."""
        return len(self.values)

    @property
    def bracket(self) -> Bracket:
        """The lower bound on variances that this head gives."""
        return Bracket(self.values, self.coupling, self.tail)

    @cached_property
    def _visible(self) -> tuple[Tensor, Tensor, Tensor]:
        """B/λ and the Cholesky factor of (B/λ)ᵀ(B/λ) + 1/λ, over directions with λ above rounding, and their mask."""
        visible = self.values > 1e2 * torch.finfo(self.values.dtype).eps * self.values[0]
        scaled = self.image[:, visible] / self.values[visible]
        return scaled, torch.linalg.cholesky(self.space.gram(scaled, scaled) + torch.diag(1 / self.values[visible])), visible

    def explained(self) -> Float[Tensor, "P K2"]:
        """E with E Eᵀ = B(BᵀB + λ)⁻¹Bᵀ: the upper bound is J′J′ᵀ − (J′E)(J′E)ᵀ."""
        scaled, factor, _ = self._visible
        return torch.linalg.solve_triangular(factor, scaled.T, upper=False).T

    def partial_mean(self, c: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """B(BᵀB + λ)⁻¹Vᵀ c: the mean of Δ after seeing only (AV)ᵀt, where c = Aᵀt."""
        scaled, factor, visible = self._visible
        seen = self.space.gram(self.v[:, visible], c) / self.values[visible].unsqueeze(1)
        return scaled @ torch.cholesky_solve(seen, factor)

    @cached_property
    def _nystrom(self) -> tuple[Tensor, Tensor]:
        """Eigenvectors and eigenvalues of B λ⁻¹ Bᵀ ⪯ G: one power step closer to those of G than V and λ."""
        visible = self._visible[2]
        half = self.image[:, visible] * self.values[visible].rsqrt()
        values, rotation = torch.linalg.eigh(self.space.gram(half, half))
        return half @ (rotation * values.rsqrt()), values

    def precondition(self, r: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """About (G + I)⁻¹ r: from the head, with its smallest eigenvalue for the rest (Frangella et al. 2021)."""
        vectors, values = self._nystrom
        floor = 1 + values[:1].sum()  # there is no value if the network is dead at all points
        weights = 1 / (values + 1) - 1 / floor
        return r / floor + vectors @ (weights.unsqueeze(1) * self.space.gram(vectors, r))


def _norm_outside(product: Product, v: Tensor, space: Space, length: int) -> float:
    """An upper bound on ‖(I − VVᵀ)G(I − VVᵀ)‖ that fails with probability at most FAILURE_PROBABILITY.

    ‖T‖ ≤ α√(2/π)·max_i ‖T ω_i‖ for Gaussian ω_i except with probability α^{−probes} (Halko et al. 2011, Lemma 4.1), used on
    T^q with its norm ‖T‖^q: the constant shrinks to its q-th root.
    """
    # The probes must be independent of G; they need not use the user's generator.
    omega = space.normal(PROBES, torch.Generator().manual_seed(0), v.dtype, v.device, length)
    log_norms = torch.zeros(PROBES, dtype=v.dtype, device=v.device)
    for _ in range(POWERS):
        omega = omega - v @ space.gram(v, omega)
        omega = product(omega)
        omega = omega - v @ space.gram(v, omega)
        norms = space.norms(omega)
        if space.agreed(bool((norms == 0).all())):
            return 0.0
        log_norms, omega = log_norms + norms.log(), omega / norms.clamp_min(1e-300)
    alpha = FAILURE_PROBABILITY ** (-1 / PROBES)
    return math.exp((math.log(alpha * math.sqrt(2 / math.pi)) + float(log_norms.max())) / POWERS)
