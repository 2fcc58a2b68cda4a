"""Functions drawn from the posterior of a network of infinite width, by Matheron's rule."""

from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor, nn

from ntkgp._system.types import MeanFunction
from ntkgp.posterior.samples import FunctionSample, as_slice
from ntkgp.problem.problem import Problem
from ntkgp.problem.stored import problem_state, restore_problem
from ntkgp.storage.state import State
from ntkgp.tangent.infinite.functions import PriorFunctions, finite_network
from ntkgp.tangent.infinite.tangent import InfiniteTangent


@dataclass(frozen=True)
class KernelSample(FunctionSample):
    """Functions m + g + K̃(x′, x)β: g is drawn from the prior by finite networks, the rest is exact.

    Cost: a forward pass per function and N·M values of the kernel; memory 2·W + N·C numbers per function, W the weights of a
    finite network.
    """

    problem: Problem
    prior: PriorFunctions
    coefficients: Float[Tensor, "NC S"]

    def changes(self, x: Tensor) -> Float[Tensor, "MC S"]:
        """What the functions add to the prior mean at x."""
        operators = self.problem.operators
        return self.prior(x) + operators.cross(operators.kernel_at(x)) @ self.coefficients

    def __getitem__(self, which: int | slice) -> "KernelSample":
        """Select functions."""
        which = as_slice(which)
        return replace(self, prior=self.prior[which], coefficients=self.coefficients[:, which])

    def state(self) -> State:
        """Return all data of the functions except the network."""
        prior = self.prior
        return problem_state(self.problem) | State.of(
            weights=prior.weights, directions=prior.directions, coefficients=self.coefficients
        )

    @classmethod
    def from_state(cls, state: State, module: nn.Module, prior_mean: MeanFunction | None) -> "KernelSample":
        """Rebuild the functions; pass `prior_mean` again if it was a function."""
        problem = restore_problem(state, module, prior_mean)
        network, dtype = finite_network(tangent_of(problem)), problem.network.dtype
        state.sizes["W"] = network.layout.size
        prior = PriorFunctions(network, state.tensor("weights", "S W", dtype), state.tensor("directions", "S W", dtype))
        return cls(problem, prior, state.tensor("coefficients", "NC S", dtype))


def tangent_of(problem: Problem) -> InfiniteTangent:
    """The tangent of a problem whose network is infinite."""
    tangent = problem.operators.tangent
    assert isinstance(tangent, InfiniteTangent)
    return tangent
