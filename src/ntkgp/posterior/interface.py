"""The interface of a posterior. This base class only declares; exact, lowrank and trained hold the three final classes."""

import os
from abc import abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp._system.settings import in_own_settings
from ntkgp._system.types import MeanFunction
from ntkgp.posterior.copies import Copyable
from ntkgp.posterior.prediction import Prediction
from ntkgp.posterior.samples import FunctionSample
from ntkgp.problem.problem import Problem
from ntkgp.problem.source import UserData
from ntkgp.storage.file import write
from ntkgp.storage.state import State

# The public verbs of all kinds of posterior, and whether they need gradients of the network to train it.
VERBS: dict[str, bool] = {
    "mean": False, "predict": False, "covariance": False, "sample": False, "joint": False, "leave_one_out": False,
    "raw_covariance": False, "sharpen": False, "more_draws": False, "update": True, "sample_networks": True,
}  # fmt: skip


class Posterior(Copyable):
    """The Gaussian-process posterior of a network: fitted once, queried many times, never changed.

    It can be copied, and pickled if the module and the prior mean can; a pickle holds what :meth:`save` writes, and these two.
    Use :meth:`save` for what should last: pickles depend on the version.

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
    why: str  # the reason for the method

    def __init_subclass__(cls) -> None:
        """Make every public verb independent of the caller's autocast and inference mode."""
        for name in VERBS.keys() & vars(cls).keys():
            setattr(cls, name, in_own_settings(VERBS[name])(vars(cls)[name]))

    @property
    @abstractmethod
    def method_name(self) -> str:
        """The method and its size, in words."""

    @property
    @abstractmethod
    def std_error(self) -> float | None:
        """The expected relative error of the epistemic std: 0 if it is exact; None if no error is known beside the bracket."""

    @property
    def choice(self) -> str:
        """What was chosen, how accurate it is, and why it was chosen.

        Example:
            >>> import torch, ntkgp
            >>> net = ntkgp.mlp(1, width=16, generator=torch.Generator().manual_seed(0))
            >>> x = torch.linspace(-1, 1, 6).unsqueeze(1)
            >>> print(ntkgp.fit(net, x, x[:, 0].sin(), noise_var=0.1, method=ntkgp.LowRank(rank=4, draws=200)).choice)
            low rank (4 directions, 200 draws); std within 5 %; you chose it
        """
        error = self.std_error
        words = "std within the bracket" if error is None else "std exact" if error == 0 else f"std within {100 * error:.2g} %"
        return "; ".join(filter(None, [self.method_name, words, self.why]))

    def __repr__(self) -> str:
        data = self.problem.data
        operators = self.problem.operators
        network = f"{operators.parameters:,} parameters" if operators.has_weights else "infinite width"
        size = f"{data.points:,} points, {network}"
        return f"<{type(self).__name__}: {size}; {self.choice}>"

    @property
    def by_autodiff(self) -> dict[str, str]:
        """The parameters that autodiff differentiates because no layer rule does so correctly, each with the reason.

        Answers are equally accurate; they take longer. The rules are checked at every training point and every query, so a
        query can add a parameter.

        Example:
            >>> import torch, ntkgp
            >>> net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.PReLU(), torch.nn.Linear(4, 1))
            >>> ntkgp.fit(net, torch.zeros(3, 2), torch.zeros(3), noise_var=0.1).by_autodiff
            {'1.weight': 'there is no rule for its layer'}
        """
        return self.problem.operators.tangent.by_autodiff

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
    def sharpen(
        self,
        x: Tensor,
        *,
        rtol: float = 0.01,
        noise_var: float | Tensor | None = None,
        max_iterations: int = 1000,
        progress: bool = False,
    ) -> Prediction:
        """Certify the variance at a few points: the prediction with ``(upper − lower)/upper ≤ rtol`` and confidence 1.

        For the points that matter: an exact posterior has this answer at once, the others solve a linear system per point and
        output, together, by block conjugate gradients. If the bracket is still wider when the iterations end, a warning says
        how wide. All ranks of a group must call it with the same points.

        Args:
            x: query points, (M, ...), a few.
            rtol: the relative width of the bracket of each variance.
            noise_var: as in :meth:`predict`.
            max_iterations: stop after so many steps.
            progress: show a progress bar.

        Example:
            >>> import torch, ntkgp
            >>> net = ntkgp.mlp(1, width=16, generator=torch.Generator().manual_seed(0))
            >>> x = torch.linspace(-1, 1, 50).unsqueeze(1)
            >>> posterior = ntkgp.fit(net, x, x[:, 0].sin(), noise_var=0.1, method=ntkgp.LowRank(rank=2, draws=4))
            >>> p = posterior.sharpen(torch.tensor([[0.5], [2.0]]), rtol=0.001)
            >>> bool((p.lower >= 0.999 * p.upper).all()), p.confidence
            (True, 1.0)
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

    @classmethod
    @abstractmethod
    def from_state(cls, state: State, module: nn.Module, prior_mean: MeanFunction | None) -> "Posterior":
        """Rebuild the posterior; pass `prior_mean` again if it was a function."""


def why_of(state: State) -> str:
    """The reason for the method; files of the version before have none."""
    return "" if state.older else state.fact("why", str)
