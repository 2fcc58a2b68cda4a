"""The two forms of the exact posterior: factorised over the observations, or over the weights. This class only declares."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp.posterior.samples import FunctionSample
from ntkgp.problem.problem import Problem
from ntkgp.storage.state import State


class Form(ABC):
    """A factorised exact posterior. All numbers are whitened: the noise variance of every observation is 1."""

    side: ClassVar[str]  # "kernel" or "weights"
    problem: Problem
    backward_error: float  # relative change of the factorised matrix that explains the residual of the mean
    refactored: int  # how often updates found this error too large, or the matrix not positive definite, and factorised again

    @property
    @abstractmethod
    def jitter(self) -> float:
        """Added to the diagonal because of rounding."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of rows of the factorised matrix."""

    @property
    @abstractmethod
    def weights(self) -> Float[Tensor, "P 1"]:
        """The displacement of the weights that gives the posterior mean."""

    @property
    @abstractmethod
    def log_determinant(self) -> float:
        """Log det(K̃ + I) = log det(G + I)."""

    @property
    @abstractmethod
    def misfit(self) -> float:
        """r̃ᵀ(K̃ + I)⁻¹r̃."""

    @property
    @abstractmethod
    def numbers_per_row(self) -> int:
        """Numbers in memory per row of J(x′) in `blocks`."""

    @abstractmethod
    def change(self, x: Tensor) -> Float[Tensor, "MC"]:
        """The change of the mean at x from its prior."""

    @abstractmethod
    def blocks(self, x: Tensor, groups: int) -> tuple[Float[Tensor, "MC"], Float[Tensor, "groups k k"]]:
        """The change of the mean at x, and the joint covariance of each group of consecutive rows, separately per group."""

    @abstractmethod
    def sample(self, count: int, generator: torch.Generator | None) -> FunctionSample:
        """Draw `count` posterior functions."""

    @abstractmethod
    def leave_one_out(self) -> tuple[Float[Tensor, "NC"], Float[Tensor, "NC"]]:
        """The error of predicting each observation from all others in predictive standard deviations, and these deviations."""

    @abstractmethod
    def updated(self, new: Problem, whole: Problem) -> "Form":
        """The form of the problem `whole`, which has the data of `new` in addition."""

    @abstractmethod
    def state(self) -> State:
        """All data of the form."""
