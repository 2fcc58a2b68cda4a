"""The head: the top of the spectrum of G = AᵀA, found by products with G alone, and the certified bracket it gives.

A is the whitened Jacobian (σ² = 1); all vectors are over the weights, so nothing grows with the number of points. With
orthonormal V (P×K), VᵀGV = diag(λ) and the image B = GV, for any V however far from converged:

* upper: seeing only (AV)ᵀy leaves the covariance ``J′(I − B(BᵀB + λ)⁻¹Bᵀ)J′ᵀ``, which is ⪰ the posterior's;
* lower: from λ, the coupling ‖B − Vλ‖ and a bound on the norm of the rest (:mod:`ntkgp.linalg.bracket`).

Both allow for the rounding of the products with G.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.locks import cached_property
from ntkgp.linalg.bracket import ROUNDINGS, Bracket, rounded_up
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
    rounding: float  # a bound on the error of G by rounding
    unit: float  # relative rounding unit of the rows of A
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
        unit: float | None = None,
    ) -> "Head":
        """The first `rank` Ritz vectors of a subspace, from an orthonormal basis, its image under G, and the trace of G.

        If the rows of v are split over processes, `space` sums over the processes. `unit` is the rounding unit of A, if A is
        less precise than v.

        Cost: POWERS products with PROBES columns, for the bound on the rest of the spectrum.
        """
        projected = space.gram(v, image)
        values, rotation = torch.linalg.eigh((projected + projected.T) / 2)
        values, rotation = values.flip(0).clamp_min(0)[:rank], rotation.flip(1)[:, :rank]
        v, image = v @ rotation, image @ rotation
        leak = image - v * values
        coupling = float(torch.linalg.matrix_norm(space.gram(leak, leak), 2).sqrt())
        unit = torch.finfo(v.dtype).eps if unit is None else unit
        rounding = ROUNDINGS * unit * trace
        rest = max(0.0, trace - float(values.sum())) + rounding
        outside = _norm_outside(product, v, space)
        return cls(v, image, values, coupling, min(rest, outside + rounding), rounding, unit, space)

    @property
    def rank(self) -> int:
        """K."""
        return len(self.values)

    @property
    def bracket(self) -> Bracket:
        """The lower bound on variances that this head gives."""
        return Bracket(self.values, self.coupling, self.tail, self.rounding, self.unit)

    @cached_property
    def _visible(self) -> tuple[Tensor, Tensor, Tensor]:
        """B/λ and the Cholesky factor of (B/λ)ᵀ(B/λ) + 1/λ, over directions with λ above rounding, and their mask."""
        visible = self.values > 1e2 * torch.finfo(self.values.dtype).eps * self.values[0]
        scaled = self.image[:, visible] / self.values[visible]
        return scaled, torch.linalg.cholesky(self.space.gram(scaled, scaled) + torch.diag(1 / self.values[visible])), visible

    def explained(self, images: Float[Tensor, "M K"]) -> Float[Tensor, "M K2"]:
        """Features Φ with ΦΦᵀ = J′B(BᵀB + λ)⁻¹BᵀJ′ᵀ, from J′B: the joint upper bound is J′J′ᵀ − ΦΦᵀ."""
        _, factor, visible = self._visible
        return torch.linalg.solve_triangular(factor, (images[:, visible] / self.values[visible]).T, upper=False).T

    def upper(self, images: Float[Tensor, "M K"], prior: Float[Tensor, "M"]) -> Float[Tensor, "M"]:
        """The upper bound on each variance, from J′B and the prior variance. Cost: 2·M·K² operations."""
        _, factor, visible = self._visible
        half = self.explained(images)
        answer = torch.linalg.solve_triangular(factor.T, half.T, upper=True).T  # of the estimator, in units of 1/λ
        terms = prior.sqrt() + torch.linalg.vector_norm(answer * torch.linalg.vector_norm(factor, dim=1), dim=1)
        norms = torch.linalg.vector_norm(answer / self.values[visible], dim=1)
        return rounded_up(prior - half.square().sum(dim=1), norms, terms.square(), self.rounding, self.unit)

    def partial_mean(self, c: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """B(BᵀB + λ)⁻¹Vᵀ c: the mean of Δ after seeing only (AV)ᵀt, where c = Aᵀt."""
        scaled, factor, visible = self._visible
        seen = self.space.gram(self.v[:, visible], c) / self.values[visible].unsqueeze(1)
        return scaled @ torch.cholesky_solve(seen, factor)

    @property
    def deviations(self) -> Float[Tensor, "K"]:
        """1/√(λ + 1): the posterior standard deviation along each direction, given the others' coupling is part of the rest."""
        return (self.values + 1).rsqrt()

    def inside(self, features: Float[Tensor, "M K"]) -> Float[Tensor, "M"]:
        """φ(λ + 1)⁻¹φᵀ from φ = J′V: the part of each variance that V(VᵀHV)⁻¹Vᵀ ⪯ H⁻¹ gives."""
        return features.square() @ (1 / (self.values + 1))

    def outside(self, delta: Float[Tensor, "P T"]) -> Float[Tensor, "P T"]:
        """δ − V(VᵀHV)⁻¹VᵀHδ. If δ has covariance H⁻¹, this has covariance H⁻¹ − V(VᵀHV)⁻¹Vᵀ: exactly the rest, for any V."""
        seen = self.space.gram(self.image, delta) + self.space.gram(self.v, delta)
        return delta - self.v @ (seen / (self.values + 1).unsqueeze(1))

    @cached_property
    def _nystrom(self) -> tuple[Tensor, Tensor]:
        """Eigenvectors and eigenvalues of B λ⁻¹ Bᵀ ⪯ G: one power step closer to those of G than V and λ."""
        visible = self._visible[2]
        half = self.image[:, visible] * self.values[visible].rsqrt()
        values, rotation = torch.linalg.eigh(self.space.gram(half, half))
        return half @ (rotation * values.rsqrt()), values

    def error(self, r: Float[Tensor, "P S"]) -> Float[Tensor, "S"]:
        """A bound on √(rᵀ(G + I)⁻¹r) for each column: of B λ⁻¹ Bᵀ ⪯ G, all directions count, the others as if G were 0."""
        vectors, values = self._nystrom
        inside = self.space.gram(vectors, r)
        outside = self.space.norms(r - vectors @ inside)
        return (outside.square() + (inside.square() / (values + 1).unsqueeze(1)).sum(dim=0)).sqrt()

    def precondition(self, r: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """About (G + I)⁻¹ r: from the head, with its smallest eigenvalue for the rest (Frangella et al. 2021)."""
        vectors, values = self._nystrom
        floor = 1 + values[:1].sum()  # there is no value if the network is dead at all points
        weights = 1 / (values + 1) - 1 / floor
        return r / floor + vectors @ (weights.unsqueeze(1) * self.space.gram(vectors, r))


def _norm_outside(product: Product, v: Tensor, space: Space) -> float:
    """An upper bound on ‖(I − VVᵀ)G(I − VVᵀ)‖ that fails with probability at most FAILURE_PROBABILITY.

    ‖T‖ ≤ α√(2/π)·max_i ‖T ω_i‖ for Gaussian ω_i except with probability α^{−probes} (Halko et al. 2011, Lemma 4.1), used on
    T^q with its norm ‖T‖^q: the constant shrinks to its q-th root.
    """
    # The probes must be independent of G; they need not use the user's generator.
    omega = space.normal(PROBES, torch.Generator().manual_seed(0), v.dtype, v.device, space.length(v))
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
