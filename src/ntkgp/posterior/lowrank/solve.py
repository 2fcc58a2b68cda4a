"""The linear systems over the weights: for the mean, the tail and function draws."""

import math
import warnings

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.errors import NumericalWarning
from ntkgp._system.memory import free_bytes
from ntkgp.linalg.cgls import Solution
from ntkgp.posterior.lowrank.side import Normal
from ntkgp.problem.problem import Problem

ROUNDING_SPREAD = 100  # error of the mean by rounding at new points, relative to the training points (measured)


def must_split(problem: Problem, columns: int) -> bool:
    """Whether about six matrices of the head's size are too large for one rank, so that each rank stores only some rows."""
    if problem.data.shard is None:
        return False
    group, (rows, parameters) = problem.data.shard.group, problem.operators.shape
    memory = free_bytes(problem.network.device) // 2 if group.memory is None else group.memory
    return group.any(6 * 8 * min(columns, rows, parameters) * parameters > memory) and group.size > 1


def warn_if_rounded(problem: Problem, solution: Solution) -> None:
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
            stacklevel=4,
        )


def right_hand_sides(
    problem: Problem, normal: Normal, z: Float[Tensor, "P T"], generator: torch.Generator | None
) -> Float[Tensor, "P 1+T"]:
    """Return J̃ᵀ r̃ for the mean, and J̃ᵀ(J̃z + ε) for each column z of the tail, with standard normal ε."""
    r = problem.data.whitened_residual.double()
    noise = problem.data.draw_noise(z.shape[1], generator).double()
    sides = problem.operators.whitened.rmatmat(torch.cat([r.unsqueeze(1), noise], dim=1))
    if z.shape[1]:
        sides[:, 1:] += normal(z)
    return sides
