"""From predictors to the covariance: which weights the head gets and which targets the tail is trained on (Algorithm 2).

Both estimates have the form J′J′ᵀ − P W Pᵀ − P′P′ᵀ/T, with P the predictors of the top K singular vectors U of J and P′ those
of T random targets. Everything here is whitened (σ² = 1).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._checks import check_count, check_rank
from ntkgp.linalg.head import Head
from ntkgp.linalg.operator import Operator
from ntkgp.linalg.svd import PartialSVD, SVDMethod
from ntkgp.problem import Problem


class CovarianceEstimate(ABC):
    """How predictors are put together to a covariance."""

    @abstractmethod
    def head_weights(self, s: Float[Tensor, "K"]) -> Float[Tensor, "K"]:
        """The diagonal of W, given the singular values."""

    draws_weights: ClassVar[bool] = True  # whether tail targets depend on weights drawn from the prior

    @abstractmethod
    def tail_targets(
        self, operator: Operator, svd: PartialSVD, z: Float[Tensor, "m Z"], noise: Float[Tensor, "n T"]
    ) -> Float[Tensor, "n T"]:
        """The random targets of P′, from standard normal z and noise."""


@dataclass(frozen=True)
class TightCovariance(CovarianceEstimate):
    """Weights Σ² + σ² and targets (I − UUᵀ)(Jz + σε): exact for the kept directions, unbiased for the others.

    Without tail predictors an upper bound, never above the paper's, and exact at K = rank(J). With them unbiased at every K.

    Example:
        >>> import torch
        >>> TightCovariance().head_weights(torch.tensor([3.0]))
        tensor([10.])
    """

    def head_weights(self, s: Float[Tensor, "K"]) -> Float[Tensor, "K"]:
        """Σ² + σ²: U diagonalises K + σ²I."""
        return s.square() + 1

    def tail_targets(
        self, operator: Operator, svd: PartialSVD, z: Float[Tensor, "m Z"], noise: Float[Tensor, "n T"]
    ) -> Float[Tensor, "n T"]:
        """(I − UUᵀ)(Jz + σε), z and ε standard normal: covariance K + σ²I outside the head."""
        draw = operator.matmat(z) + noise
        return draw - svd.u @ (svd.u.T @ draw)


@dataclass(frozen=True)
class PaperCovariance(CovarianceEstimate):
    """The paper's Algorithm 2: weights Σ² and targets ε ~ N(0, σ²I). Directions beyond K stay missing.

    Without tail predictors an upper bound: at most σ² too large on the training set when K is full.

    Example:
        >>> import torch
        >>> PaperCovariance().head_weights(torch.tensor([3.0]))
        tensor([9.])
    """

    def head_weights(self, s: Float[Tensor, "K"]) -> Float[Tensor, "K"]:
        """Σ²."""
        return s.square()

    draws_weights = False

    def tail_targets(
        self, operator: Operator, svd: PartialSVD, z: Float[Tensor, "m Z"], noise: Float[Tensor, "n T"]
    ) -> Float[Tensor, "n T"]:
        """ε ~ N(0, σ²I)."""
        return noise


@dataclass(frozen=True)
class CovarianceParts:
    """Evaluated predictors at some points, ready to be put together."""

    head: Float[Tensor, "M K"]
    weights: Float[Tensor, "K"]
    tail: Float[Tensor, "M T"]

    def explained_diag(self) -> Float[Tensor, "M"]:
        """The diagonal of P W Pᵀ + P′P′ᵀ/T."""
        return self.head.square() @ self.weights + self.tail.square().sum(dim=1) / max(self.tail.shape[1], 1)

    def explained(self) -> Float[Tensor, "M M"]:
        """P W Pᵀ + P′P′ᵀ/T."""
        return (self.head * self.weights) @ self.head.T + self.tail @ self.tail.T / max(self.tail.shape[1], 1)


@dataclass(frozen=True)
class CovariancePlan:
    """What Algorithm 2 learns: the K singular vectors, then the T random targets; and what it makes of the predictors."""

    problem: Problem
    svd: PartialSVD
    estimate: CovarianceEstimate
    z: Float[Tensor, "P Z"]  # what the tail was drawn from: weights, and noise
    noise: Float[Tensor, "NC T"]
    tail: Float[Tensor, "NC T"]

    @property
    def targets(self) -> Float[Tensor, "NC S"]:
        """Targets in the units of y: the columns of U, and the tail draws."""
        std = self.problem.noise_std.unsqueeze(1)
        return torch.cat([self.svd.u * (std / self.problem.noise_scale), self.tail * std], dim=1)

    def parts(self, values: Float[Tensor, "M S"]) -> CovarianceParts:
        """The evaluated predictors of `targets`, with their weights."""
        head, tail = values.split([self.svd.rank, self.tail.shape[1]], dim=1)
        return CovarianceParts(head, self.problem.noise_scale**2 * self.estimate.head_weights(self.svd.s), tail)

    def bound_weights(self) -> Float[Tensor, "K"]:
        """The weights of (J′V)² in the estimate's own upper bound, where the head's predictors are J′V s/(s²+1)."""
        s = self.svd.s
        return self.estimate.head_weights(s) * (s / (s.square() + 1)).square()

    def bracket(self) -> Head:
        """The certified bracket of this head."""
        v, problem = self.svd.v, self.problem
        return Head.of(problem.normal, v, problem.normal(v), problem.trace)

    def extended(self, problem: Problem, svd: SVDMethod, generator: torch.Generator | None = None) -> "CovariancePlan":
        """The plan for a problem with more data: as many singular vectors, and the same draws with more noise behind them."""
        operator, (rows, T) = problem.whitened, self.noise.shape
        found = svd(operator, self.svd.rank, generator)
        noise = torch.cat([self.noise, operator.normal(operator.shape[0] - rows, T, generator)])
        tail = self.estimate.tail_targets(operator, found, self.z, noise)
        return CovariancePlan(problem, found, self.estimate, self.z, noise, tail)


def plan_covariance(
    problem: Problem,
    rank: int,
    tail: int,
    svd: SVDMethod,
    estimate: CovarianceEstimate,
    generator: torch.Generator | None = None,
) -> CovariancePlan:
    """The partial SVD of the whitened Jacobian and the random targets that go with it."""
    check_rank(rank, *problem.jacobian.shape)
    check_count(tail, "tail", 0)
    operator = problem.whitened
    found, (rows, parameters) = svd(operator, rank, generator), operator.shape
    z = operator.normal(parameters, tail if estimate.draws_weights else 0, generator)
    noise = operator.normal(rows, tail, generator)
    return CovariancePlan(problem, found, estimate, z, noise, estimate.tail_targets(operator, found, z, noise))
