"""What every posterior answers. The base class only declares; the three final classes are in exact, lowrank and trained."""

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

    kind: ClassVar[str]  # its name in files
    problem: Problem  # that it answers: network, points, residuals and noise

    @abstractmethod
    def mean(self, x: Tensor) -> Tensor:
        """The mean of :meth:`predict` alone, up to rounding, without the work for variances; differentiable in x.

        Args:
            x: query points, (M, ...).
        """

    @abstractmethod
    def predict(self, x: Tensor, *, noise_var: float | Tensor | None = None) -> Prediction:
        """Mean, variance and its bracket at the points x; differentiable in x.

        Args:
            x: query points, (M, ...).
            noise_var: noise variance at x for ``total_std``; the training one when that was a single number.
        """

    @abstractmethod
    def covariance(self, x: Tensor) -> Float[Tensor, "MC MC"]:
        """The joint epistemic covariance of all outputs at all points of x, rows ordered point-major."""

    @abstractmethod
    def sample(self, count: int, *, generator: torch.Generator | None = None) -> FunctionSample:
        """`count` functions drawn from the posterior, by Matheron's rule: f = m + J(z + Jᵀ(K + σ²I)⁻¹(r − Jz − ε)).

        Their mean is that of ``predict``, their covariance that of the Gaussian process itself, whatever the method: where the
        variance of ``predict`` is an estimate, that of the draws is what it estimates, and lies in its bracket. Memory:
        P·count numbers; for very many draws, draw some at a time from the same generator.

        Args:
            count: how many.
            generator: source of the draws; the global one when None.
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
        """A new posterior that has also seen (x, y), without starting over; this one is unchanged.

        Equal to a fresh :func:`fit` to all data with the same method, to the tolerance of its solver. The network, prior mean,
        prior variance and chosen parameters stay. Several updates of the same posterior are fine.

        Args:
            x: new points, (m, ...); or an iterable of (x, y) batches.
            y: their targets, (m,) or (m, C). None when x gives batches.
            noise_var: their noise variance, as in :func:`fit`; that of the fit when None, where it was the same at every point.
            generator: source of randomness of methods that need it; the global one when None.
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

        The file holds the training points and all that was computed, but not the network, of which it keeps a fingerprint, and
        no prior mean that is a function. Points given as batches are left out: the loaded posterior predicts and gives
        covariances, which needs none of them, but cannot draw functions. The file is whole or not written: one that is there
        already stays until its successor is complete. A symbolic link is refused. Memory: a copy of what lies on a GPU.
        """
        write(path, self.kind, self.state())

    @abstractmethod
    def state(self) -> State:
        """All that the posterior is made of, less the network."""

    @classmethod
    @abstractmethod
    def from_state(cls, state: State, module: nn.Module, prior_mean: MeanFunction | None) -> "Posterior":
        """The posterior again; prior_mean is the function, where it was one."""
