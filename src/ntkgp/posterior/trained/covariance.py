"""From predictors to the covariance: the weights of the head and the training targets of the tail (Algorithm 2).

Both estimates have the form J′J′ᵀ − P W Pᵀ − P′P′ᵀ/T: P are the predictors of the top K singular vectors U of J (the head), P′
the predictors of T random targets (the tail). Everything here is whitened (σ² = 1).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from ntkgp.linalg.chi_squared import check_confidence
from ntkgp.linalg.operator import Operator
from ntkgp.linalg.svd.partial_svd import PartialSVD


class CovarianceEstimate(ABC):
    """A rule that combines predictors into a covariance."""

    @abstractmethod
    def head_weights(self, s: Float[Tensor, "K"]) -> Float[Tensor, "K"]:
        """Return the diagonal of W for the singular values s."""

    draws_weights: ClassVar[bool] = True  # whether the tail targets need weights drawn from the prior
    confidence: float = 1.0  # probability with which the bracket holds that the estimate gives

    @abstractmethod
    def tail_targets(
        self, operator: Operator, svd: PartialSVD, z: Float[Tensor, "m Z"], noise: Float[Tensor, "n T"]
    ) -> Float[Tensor, "n T"]:
        """Return the random targets of P′, from standard normal z and noise."""


class TightTargets(CovarianceEstimate):
    """Weights Σ² + σ² and targets (I − UUᵀ)(Jz + σε)."""

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
class TightCovariance(TightTargets):
    """Weights Σ² + σ² and targets (I − UUᵀ)(Jz + σε): exact in the head, unbiased in the rest.

    Without a tail it is an upper bound, never above the paper's, and exact at K = rank(J). With a tail it is unbiased at any K.

    Example:
        >>> import torch
        >>> TightCovariance().head_weights(torch.tensor([3.0]))
        tensor([10.])
    """


@dataclass(frozen=True)
class DrawnCovariance(TightTargets):
    """Posterior draws by trained networks: sample, then optimise. Exact in the head, and unbiased in the rest.

    The rest of the variance is the mean square of T draws, ``J(I − VVᵀ)z`` minus the predictor of ``(I − UUᵀ)(Jz + σε)``. Its
    error is relative to the variance itself, √(1/2T) in the std, where the two other estimates are off by a part of the upper
    bound; and the χ² distribution of the draws gives a bracket. Without a tail it is the upper bound.

    Args:
        confidence: the probability with which each bracket holds, apart from errors of the training.

    Example:
        >>> import torch
        >>> DrawnCovariance().head_weights(torch.tensor([3.0]))
        tensor([10.])
    """

    confidence: float = 0.999

    def __post_init__(self) -> None:
        check_confidence(self.confidence)


@dataclass(frozen=True)
class PaperCovariance(CovarianceEstimate):
    """The paper's Algorithm 2: weights Σ² and targets ε ~ N(0, σ²I). It leaves out the kernel outside the head.

    Without a tail it is an upper bound: at most σ² too large on the training set at full K.

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
    """Predictors evaluated at some points, with the weights that combine them."""

    head: Float[Tensor, "M K"]
    weights: Float[Tensor, "K"]
    tail: Float[Tensor, "M T"]

    def explained_diag(self) -> Float[Tensor, "M"]:
        """Return the diagonal of P W Pᵀ + P′P′ᵀ/T."""
        return self.head.square() @ self.weights + self.tail.square().sum(dim=1) / max(self.tail.shape[1], 1)

    def explained(self) -> Float[Tensor, "M M"]:
        """Return P W Pᵀ + P′P′ᵀ/T."""
        return (self.head * self.weights) @ self.head.T + self.tail @ self.tail.T / max(self.tail.shape[1], 1)
