"""What every posterior answers. The base class only declares; the three final classes are in exact, lowrank and trained."""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp._types import MeanFunction
from ntkgp.archive import State, write
from ntkgp.more_data import Data
from ntkgp.predictors import Predictors
from ntkgp.problem import Problem


@dataclass(frozen=True)
class Prediction:
    """The posterior at M points: shape (M,) when y had shape (N,), (M, C) when it had (N, C).

    Attributes:
        mean: posterior mean.
        variance: epistemic variance, what the network does not know; it shrinks with data.
        lower: certified lower bound on the exact variance.
        upper: certified upper bound on the exact variance.
        noise_var: variance of the observation noise at these points; None when the training noise differed from point to
            point and ``predict`` was not told that of the new ones.

    Example:
        >>> import torch
        >>> p = Prediction(*torch.tensor([[1.0], [4.0], [4.0], [4.0], [5.0]]))
        >>> p.std, p.total_std
        (tensor([2.]), tensor([3.]))
        >>> p.interval(0.95)  # of a new observation: 1 ± 1.96 · 3
        (tensor([-4.8799]), tensor([6.8799]))
        >>> p.log_density(torch.tensor([4.0]))
        tensor([-2.5176])
    """

    mean: Float[Tensor, "*shape"]
    variance: Float[Tensor, "*shape"]
    lower: Float[Tensor, "*shape"]
    upper: Float[Tensor, "*shape"]
    noise_var: Float[Tensor, "*shape"] | None

    @property
    def std(self) -> Tensor:
        """Epistemic standard deviation."""
        return self.variance.sqrt()

    @property
    def total_std(self) -> Tensor:
        """Standard deviation of a new observation: epistemic and noise together."""
        if self.noise_var is None:
            raise ValueError("the noise of these points is not known; pass noise_var to predict")
        return (self.variance + self.noise_var).sqrt()

    def log_density(self, y: Tensor) -> Tensor:
        """Log density of each observation by itself, log N(y; mean, variance + noise_var), in the shape of the mean.

        Args:
            y: observations in the shape of the mean.
        """
        std = self.total_std
        check_observations(y, self.mean)
        if not bool((std > 0).all()):
            raise ValueError(
                "the total variance is 0 at some points, so y has no density there; pass a larger noise_var to predict"
            )
        return -0.5 * ((y - self.mean) / std).square() - std.log() - 0.5 * math.log(2 * math.pi)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Ends of the central interval that holds a new observation with probability `level`."""
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1, got {level!r}; 95 % is 0.95")
        reach = float(torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64))) * self.total_std
        return self.mean - reach, self.mean + reach


def check_observations(y: Tensor, mean: Tensor) -> None:
    """Observations to hold against a prediction: finite, floating, in the shape of its mean and on its device."""
    if not isinstance(y, Tensor):
        raise TypeError(f"y must be a torch.Tensor, got {type(y).__name__}; use torch.as_tensor(y)")
    if not y.is_floating_point():
        raise TypeError(f"y must be real floating point, got {y.dtype}; use y.float() or y.double()")
    if y.shape != mean.shape:  # (M,) against (M, 1) would broadcast to (M, M)
        raise ValueError(
            f"y must have the shape of the prediction, {tuple(mean.shape)}, got {tuple(y.shape)}; use y.view_as(p.mean)"
        )
    if y.device != mean.device:
        raise ValueError(f"y is on {y.device} but the prediction is on {mean.device}; move one with .to(...)")
    if not bool(torch.isfinite(y).all()):
        raise ValueError("y holds NaN or infinity; leave such points out of x and y")


@dataclass(frozen=True)
class FunctionSample:
    """S functions drawn from a posterior, evaluable anywhere, again and again.

    Each is fixed weights of the linearised network; those of ``sample_networks`` have a trained copy of it beside them.

    Call it on M points for values of shape (S, M) or (S, M, C); differentiable in them. A function has the same value at a
    point whatever the other points of the call, to rounding. Cost: 2·M·C·P·S operations; memory P·S numbers for the
    functions, and three times the values while they are computed.

    Example:
        >>> import torch, ntkgp
        >>> net = ntkgp.mlp(1, width=16, generator=torch.Generator().manual_seed(0))
        >>> x = torch.linspace(-1, 1, 6).unsqueeze(1)
        >>> f = ntkgp.fit(net, x, x[:, 0].sin(), noise_var=0.1).sample(3)
        >>> f(x).shape, bool((f(x) == f(x)).all())
        (torch.Size([3, 6]), True)
    """

    problem: Problem
    weights: Float[Tensor, "P S"]
    centre: Callable[[Tensor], Float[Tensor, "MC"]] | None = None  # a mean of its own, where the weights have none
    networks: Predictors | None = None  # a trained copy for each function, where the weights are drawn from the prior alone

    def __call__(self, x: Tensor) -> Tensor:
        """The values of all S functions at x."""
        problem, x = self.problem, self.problem.checked(x)
        mean = problem.mean_at(x) if self.centre is None else problem.mean_at(x) + self.centre(x)
        values = mean.unsqueeze(1) + problem.features(problem.tangent.at(x), self.weights)
        values = values if self.networks is None else values + self.networks(x).to(values.dtype)
        values = problem.answer(values).T.unflatten(1, (-1, problem.outputs))
        return values.squeeze(2) if problem.vector_output else values

    def __getitem__(self, which: int | slice) -> "FunctionSample":
        """Some of the functions: ``f[3]`` is a sample of one, ``f[:8]`` one of eight."""
        which = slice(which, which + 1 or None) if isinstance(which, int) else which
        networks = None if self.networks is None else self.networks[which]
        return replace(self, weights=self.weights[:, which], networks=networks)


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
        x: Data,
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
