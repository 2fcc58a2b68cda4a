"""The posterior at fixed queries from the whole spectrum of the kernel: one eigendecomposition serves every rank.

For small problems with many queries: Figure 1 and the explorer. All observations share one noise variance.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.locks import cached_property
from ntkgp.linalg.bracket import Bracket
from ntkgp.linalg.operator import Operator
from ntkgp.linalg.svd.partial_svd import PartialSVD
from ntkgp.posterior.trained.covariance import CovarianceEstimate, CovarianceParts, TightCovariance
from ntkgp.tangent.interfaces import KernelRows


@dataclass(frozen=True)
class JointKernel:
    """The prior covariance of the M query rows and the N training rows as one matrix, queries first."""

    matrix: Float[Tensor, "Q Q"]
    rows: int  # N, the number of training rows

    @classmethod
    def of(cls, queries: KernelRows, train: KernelRows | None, gram: Float[Tensor, "M M"] | None = None) -> "JointKernel":
        """Build the matrix from the rows of both; pass `gram`, the kernel of the queries, if it is already known."""
        gram = queries.gram() if gram is None else gram
        if train is None:
            return cls(gram, 0)
        cross, corner = queries.cross(train), train.gram()
        return cls(torch.cat([torch.cat([gram, cross], dim=1), torch.cat([cross.T, corner], dim=1)]), len(corner))

    @property
    def train(self) -> Float[Tensor, "N N"]:
        """K(x, x)."""
        return self.matrix[len(self.prior) :, len(self.prior) :]

    @property
    def cross(self) -> Float[Tensor, "M N"]:
        """K(x′, x)."""
        return self.matrix[: len(self.prior), len(self.prior) :]

    @property
    def prior(self) -> Float[Tensor, "M"]:
        """The diagonal of K(x′, x′)."""
        return self.matrix.diagonal()[: len(self.matrix) - self.rows]

    @cached_property
    def root(self) -> Float[Tensor, "Q Q"]:
        """A matrix R with R Rᵀ = the joint covariance."""
        values, vectors = torch.linalg.eigh(self.matrix)
        return vectors * values.clamp_min(0).sqrt()


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues λ of K(x, x), decreasing, its eigenvectors U, and K(x′, x) U."""

    values: Float[Tensor, "N"]
    vectors: Float[Tensor, "N N"]
    cross: Float[Tensor, "M N"]

    @classmethod
    def of(cls, kernel: JointKernel) -> "Spectrum":
        """Cost: N³ operations."""
        values, vectors = torch.linalg.eigh(kernel.train)
        values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
        return cls(values, vectors, kernel.cross @ vectors)


@dataclass(frozen=True)
class SpectralPosterior:
    """Mean, variance, and at every rank K the bounds, predictors and tail targets; all at the queries of `kernel`.

    Example:
        >>> import torch
        >>> kernel = JointKernel(torch.tensor([[2.0, 1.0], [1.0, 2.0]]), rows=1)  # one query, one training point
        >>> posterior = SpectralPosterior(kernel, Spectrum.of(kernel), torch.tensor([3.0]), noise_var=1.0)
        >>> posterior.mean, posterior.variance
        (tensor([1.]), tensor([1.6667]))
    """

    kernel: JointKernel
    spectrum: Spectrum
    residual: Float[Tensor, "N"]
    noise_var: float

    @property
    def mean(self) -> Float[Tensor, "M"]:
        """K(x′, x) A⁻¹ r."""
        return self.respond(self.residual.unsqueeze(1))[:, 0]

    @property
    def variance(self) -> Float[Tensor, "M"]:
        """The exact posterior variance."""
        return (self.kernel.prior - self.spectrum.cross.square() @ self._weights).clamp_min(0)

    def respond(self, targets: Float[Tensor, "N S"]) -> Float[Tensor, "M S"]:
        """Return M t = K(x′, x) A⁻¹ t for each column t: the result of Algorithm 1 for the target t."""
        return (self.spectrum.cross * self._weights) @ (self.spectrum.vectors.T @ targets)

    def predictors(self, rank: int) -> Float[Tensor, "M K"]:
        """Return P = M U, the predictors of the first `rank` eigenvectors."""
        return (self.spectrum.cross * self._weights)[:, :rank]

    def bound(self, estimate: CovarianceEstimate, rank: int) -> Float[Tensor, "M"]:
        """Return the upper bound of an estimate with `rank` eigenvectors and no tail, J′J′ᵀ − P W Pᵀ."""
        head = self.predictors(rank)
        weights = self.noise_var * estimate.head_weights(self._whitened[:rank].sqrt())
        return self.kernel.prior - CovarianceParts(head, weights, head[:, :0]).explained_diag()

    def lower(self, rank: int) -> Float[Tensor, "M"]:
        """Return the certified lower bound with `rank` exact eigenvectors: no coupling; the next eigenvalue bounds the rest."""
        values, eps = self._whitened, torch.finfo(self.spectrum.values.dtype).eps
        # Directions that J does not see to working precision (for example, of repeated points) count as outside the head.
        seen = int((values[:rank] > 1e2 * eps * values[:1]).sum())
        rest = float(values[seen]) if seen < len(values) else 0.0
        bracket = Bracket(values[:seen], 0.0, rest + 10 * eps * float(values.sum()))
        return bracket.lower(self.spectrum.cross[:, :seen] * self.spectrum.values[:seen].rsqrt(), self.kernel.prior)

    def tail_targets(self, rank: int, count: int, generator: torch.Generator) -> Float[Tensor, "N T"]:
        """Draw targets (I − UUᵀ)(Jz + σε)/σ for `count` tail predictors, with the symmetric root of K in place of J.

        They have the same distribution as the tail targets of :class:`TightCovariance`.
        """
        u, s = self.spectrum.vectors, self._whitened.sqrt()
        head = PartialSVD(u[:, :rank], s[:rank], u[:, :rank], torch.zeros_like(s[:rank]), converged=True, products=0)
        z, noise = (torch.randn(len(u), count, dtype=u.dtype, generator=generator) for _ in range(2))
        return TightCovariance().tail_targets(Operator.of((u * s) @ u.T), head, z, noise)

    def sample(self, count: int, generator: torch.Generator) -> Float[Tensor, "S M"]:
        """Draw `count` posterior functions by Matheron's rule and return their values at the queries."""
        like = {"dtype": self.kernel.matrix.dtype, "generator": generator}
        prior = self.kernel.root @ torch.randn(len(self.kernel.matrix), count, **like)
        noise = self.noise_var**0.5 * torch.randn(self.kernel.rows, count, **like)
        queries = len(prior) - self.kernel.rows
        return (prior[:queries] + self.respond(self.residual.unsqueeze(1) - prior[queries:] - noise)).T

    @property
    def _weights(self) -> Float[Tensor, "N"]:
        return 1 / (self.spectrum.values + self.noise_var)

    @property
    def _whitened(self) -> Float[Tensor, "N"]:
        return self.spectrum.values / self.noise_var
