"""Functions drawn from a posterior."""

from abc import abstractmethod
from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor, nn

from ntkgp._system.settings import in_own_settings
from ntkgp._system.types import MeanFunction
from ntkgp.posterior.copies import Copyable
from ntkgp.posterior.trained.training.networks import NetworkPredictors, predictors_state, restore_predictors
from ntkgp.problem.problem import Problem
from ntkgp.problem.stored import problem_state, restore_problem
from ntkgp.storage.state import State


class FunctionSample(Copyable):
    """S functions drawn from a posterior; evaluate them at any points, as often as you like.

    Call it on M points for values of shape (S, M) or (S, M, C); differentiable in x. Up to rounding, the value at a point
    does not depend on the other points of the call. ``f[3]`` is a sample of one function, ``f[:8]`` a sample of eight. It can
    be copied, and pickled if the module and the prior mean can.

    Example:
        >>> import torch, ntkgp
        >>> net = ntkgp.mlp(1, width=16, generator=torch.Generator().manual_seed(0))
        >>> x = torch.linspace(-1, 1, 6).unsqueeze(1)
        >>> f = ntkgp.fit(net, x, x[:, 0].sin(), noise_var=0.1).sample(3)
        >>> f(x).shape, bool((f(x) == f(x)).all())
        (torch.Size([3, 6]), True)
    """

    problem: Problem

    @in_own_settings()
    def __call__(self, x: Tensor) -> Tensor:
        """Evaluate all S functions at x."""
        answers = self.problem.answers
        x = answers.checked(x)
        values = answers.cast(answers.mean_at(x).unsqueeze(1) + self.changes(x)).T.unflatten(1, (-1, answers.outputs))
        return values.squeeze(2) if answers.vector_output else values

    @abstractmethod
    def changes(self, x: Tensor) -> Float[Tensor, "MC S"]:
        """What the functions add to the prior mean at x."""

    @abstractmethod
    def __getitem__(self, which: int | slice) -> "FunctionSample":
        """Select functions."""


@dataclass(frozen=True)
class LinearSample(FunctionSample):
    """Functions of a network with weights: each is the linearised network; those of ``sample_networks`` add a trained copy.

    Cost: 2·M·C·P·S operations; memory P·S numbers for the functions, and three times the values during a call.
    """

    problem: Problem
    weights: Float[Tensor, "P S"]
    centre: NetworkPredictors | None = None  # the trained copy of the mean, if the weights do not include the mean
    networks: NetworkPredictors | None = None  # one trained copy per function, if the weights are a prior draw

    def changes(self, x: Tensor) -> Float[Tensor, "MC S"]:
        """J′Δ of each function, and what its trained copy adds."""
        operators = self.problem.operators
        values = operators.features(operators.at(x), self.weights)
        for trained in (self.centre, self.networks):
            values = values if trained is None else values + trained(x).to(values.dtype)
        return values

    def __getitem__(self, which: int | slice) -> "LinearSample":
        """Select functions."""
        which = as_slice(which)
        networks = None if self.networks is None else self.networks[which]
        return replace(self, weights=self.weights[:, which], networks=networks)

    def state(self) -> State:
        """Return all data of the functions except the network."""
        if self.problem.operators.space.spread:
            raise ValueError("these functions are split over the ranks; draw them from posterior.whole(), which is not")
        trained, role = (self.networks, "networks") if self.centre is None else (self.centre, "centre")
        state = problem_state(self.problem) | State.of(weights=self.weights, trained=None if trained is None else role)
        return state if trained is None else state | predictors_state(trained)

    @classmethod
    def from_state(cls, state: State, module: nn.Module, prior_mean: MeanFunction | None) -> "LinearSample":
        """Rebuild the functions; pass `prior_mean` again if it was a function."""
        problem = restore_problem(state, module, prior_mean)
        weights, role = state.tensor("weights", "P S"), state.fact("trained", str, type(None))
        if role is None:
            return cls(problem, weights)
        return cls(problem, weights, **{role: restore_predictors(state, problem, "S" if role == "networks" else "1")})


def as_slice(which: int | slice) -> slice:
    """One index as a slice."""
    return slice(which, which + 1 or None) if isinstance(which, int) else which
