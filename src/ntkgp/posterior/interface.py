"""The interface of a posterior. This base class only declares; exact, lowrank and trained hold the three final classes."""

import os
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp._system.types import MeanFunction
from ntkgp.posterior.prediction import Prediction
from ntkgp.posterior.samples import FunctionSample
from ntkgp.problem.problem import Problem
from ntkgp.problem.source import UserData
from ntkgp.storage.file import write
from ntkgp.storage.state import State


class Posterior(ABC):
    """The Gaussian-process posterior of a network: fitted once, queried many times, never changed.

    Example:
        >>> import torch, ntkgp
        >>> net = ntkgp.mlp(1, width=16, generator=torch.Generator().manual_seed(0))
        >>> x = torch.linspace(-1, 1, 6).unsqueeze(1)
        >>> posterior = ntkgp.fit(net, x, x[:, 0].sin(), noise_var=0.1)
        >>> posterior.predict(x).mean.shape, posterior.covariance(x).shape
        (torch.Size([6]), torch.Size([6, 6]))
    """

    kind: ClassVar[str]  # name of the class in files
    problem: Problem  # network, points, residuals and noise

    @abstractmethod
    def mean(self, x: Tensor) -> Tensor:
        """The mean at x without the cost of variances, equal to that of :meth:`predict` up to rounding; differentiable in x.

        Args:
            x: query points, (M, ...).
        """

    @abstractmethod
    def predict(self, x: Tensor, *, noise_var: float | Tensor | None = None) -> Prediction:
        """Mean, variance and the bracket of the variance at the points x; differentiable in x.

        Args:
            x: query points, (M, ...).
            noise_var: noise variance at x for ``total_std``; if None, the training noise, provided all points share it.
        """

    @abstractmethod
    def covariance(self, x: Tensor) -> Float[Tensor, "MC MC"]:
        """The joint epistemic covariance of all outputs at all points of x, rows ordered point-major."""

    @abstractmethod
    def sample(self, count: int, *, generator: torch.Generator | None = None) -> FunctionSample:
        """`count` functions drawn from the posterior, by Matheron's rule: f = m + J(z + Jᵀ(K + σ²I)⁻¹(r − Jz − ε)).

        With every method, their mean is the mean of ``predict`` and their covariance is the exact posterior covariance. If the
        variance of ``predict`` is an estimate, the draws have the exact variance, which lies in the bracket. Memory: P·count
        numbers; for very many draws, call it several times with the same generator.

        Args:
            count: number of functions.
            generator: random numbers for the draws; torch's global generator if None.
        """

    @abstractmethod
    def update(
        self,
        x: UserData,
        y: Tensor | None = None,
        *,
        noise_var: float | Tensor | None = None,
        generator: torch.Generator | None = None,
        progress: bool = False,
    ) -> "Posterior":
        """Return a new posterior that has also seen (x, y), without starting over; this posterior does not change.

        The result equals a new :func:`fit` to all data with the same method, to the tolerance of its solver. Network, prior
        mean, prior variance and chosen parameters stay the same. You can update one posterior several times.

        Args:
            x: new points, (m, ...); or an iterable of (x, y) batches.
            y: their targets, (m,) or (m, C). None if x gives batches.
            noise_var: their noise variance, as in :func:`fit`; if None, the noise of the fit, provided all points share it.
            generator: random numbers for methods that need them; torch's global generator if None.
            progress: show a progress bar.

        Example:
            >>> import torch, ntkgp
            >>> net = ntkgp.mlp(1, width=16, generator=torch.Generator().manual_seed(0))
            >>> x = torch.linspace(-1, 1, 6).unsqueeze(1)
            >>> before = ntkgp.fit(net, x, x[:, 0].sin(), noise_var=0.1)
            >>> after = before.update(torch.tensor([[2.0]]), torch.tensor([1.0]))
            >>> at = torch.tensor([[2.0]])
            >>> bool(after.predict(at).std < before.predict(at).std)
            True
        """

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the posterior to one safetensors file, for :func:`ntkgp.load`: tensors, and JSON in its header; no code.

        The file contains the training points and all results. It does not contain the network, only its fingerprint, nor a
        prior mean that is a function. Points given as batches are not saved: the loaded posterior can predict and give
        covariances, but cannot draw functions. The write is atomic: an existing file stays until the new one is complete.
        Symbolic links are refused. Memory: a copy of all tensors on a GPU.
        """
        write(path, self.kind, self.state())

    @abstractmethod
    def state(self) -> State:
        """Return all data of the posterior except the network."""

    @classmethod
    @abstractmethod
    def from_state(cls, state: State, module: nn.Module, prior_mean: MeanFunction | None) -> "Posterior":
        """Rebuild the posterior; pass `prior_mean` again if it was a function."""
