"""The linear systems over the weights: for the mean, the tail and function draws."""

import math
import warnings
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.errors import NumericalWarning
from ntkgp._system.resume import Bookmark
from ntkgp.linalg.cgls import CGLS, Solution
from ntkgp.linalg.head import Head
from ntkgp.posterior.lowrank.side import Normal
from ntkgp.problem.problem import Problem

ROUNDING_SPREAD = 100  # error of the mean by rounding at new points, relative to the training points (measured)


@dataclass(frozen=True)
class Solved:
    """The weights drawn for the tail, the right-hand sides of the mean and the tail, and their solutions."""

    z: Float[Tensor, "P T"]
    sides: Float[Tensor, "P 1+T"]
    solution: Solution


@dataclass(frozen=True)
class Solver:
    """How the linear systems of one fit are solved."""

    solver: CGLS
    generator: torch.Generator | None
    progress: bool
    bookmark: Bookmark

    def mean_and_tail(self, normal: Normal, head: Head, tail: int) -> Solved:
        """Solve for the mean and for `tail` draws together, preconditioned by the head."""
        z = normal.problem.operators.draw_weights(tail, self.generator).double()
        sides = right_hand_sides(normal, z, self.generator)
        solution = self.solver.solve(normal.system(head), sides, progress=self.progress, bookmark=self.bookmark)
        _warn_if_rounded(normal.problem, solution)
        return Solved(z, sides, solution)


def right_hand_sides(normal: Normal, z: Float[Tensor, "P T"], generator: torch.Generator | None) -> Float[Tensor, "P 1+T"]:
    """Return J̃ᵀ r̃ for the mean, and J̃ᵀ(J̃z + ε) for each column z of the tail, with standard normal ε."""
    problem = normal.problem
    r = problem.data.whitened_residual.double()
    noise = problem.data.draw_noise(z.shape[1], generator).double()
    sides = problem.operators.whitened.rmatmat(torch.cat([r.unsqueeze(1), noise], dim=1))
    if z.shape[1]:
        sides[:, 1:] += normal(z)
    return sides


def _warn_if_rounded(problem: Problem, solution: Solution) -> None:
    """Warn if rounding of J in the dtype of the network may change the mean by more than a posterior standard deviation.

    Independent rounding errors change each whitened residual by about ε‖J̃ᵢ‖‖Δ‖/√P. At other points the mean changes more, by
    a factor ROUNDING_SPREAD, if some points nearly coincide but their targets differ.
    """
    operators, data = problem.operators, problem.data
    size = math.sqrt(operators.trace / operators.parameters) * float(operators.space.norms(solution.x[:, :1]))
    off = ROUNDING_SPREAD * torch.finfo(problem.network.dtype).eps * size
    if off <= 1:
        return
    of_targets = data.total(data.whitened_residual.double().square().sum()) ** 0.5
    if size > 3 * of_targets:  # otherwise rounding of the targets has as large an effect
        warnings.warn(
            f"rounding of the network's derivatives in {problem.network.dtype} may change the mean by about {off:.1g} "
            "posterior standard deviations; use module.double(), or raise noise_var",
            NumericalWarning,
            stacklevel=5,
        )
