"""The linear systems over the weights: of the mean, of the tail and of function draws."""

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

ROUNDING_SPREAD = 100  # how much further rounding moves the mean elsewhere than at the training points (measured)


def must_split(problem: Problem, columns: int) -> bool:
    """Whether vectors over the weights are too many for each rank to hold all: some six blocks of a head's size are."""
    if problem.data.shard is None:
        return False
    group, (rows, parameters) = problem.data.shard.group, problem.operators.shape
    memory = free_bytes(problem.network.device) // 2 if group.memory is None else group.memory
    return group.any(6 * 8 * min(columns, rows, parameters) * parameters > memory) and group.size > 1


def warn_if_rounded(problem: Problem, solution: Solution) -> None:
    """Warn when the rounding of J itself, in the dtype of the network, may move the mean by a posterior standard deviation.

    Independent rounding errors move the whitened residuals by some ε‖J̃ᵢ‖‖Δ‖/√P each. ROUNDING_SPREAD says how much more the
    mean moves at other points, where points nearly coincide and their targets do not.
    """
    operators, data = problem.operators, problem.data
    size = math.sqrt(operators.trace / operators.parameters) * float(operators.space.norms(solution.x[:, :1]))
    off = ROUNDING_SPREAD * torch.finfo(problem.network.dtype).eps * size
    if off <= 1:
        return
    of_targets = data.total(data.whitened_residual.double().square().sum()) ** 0.5
    if size > 3 * of_targets:  # else the rounding of the targets themselves does as much
        warnings.warn(
            f"rounding of the network's derivatives in {problem.network.dtype} may move the mean by some {off:.1g} posterior "
            "standard deviations; use module.double(), or raise noise_var",
            NumericalWarning,
            stacklevel=4,
        )


def right_hand_sides(
    problem: Problem, normal: Normal, z: Float[Tensor, "P T"], generator: torch.Generator | None
) -> Float[Tensor, "P 1+T"]:
    """J̃ᵀ r̃, and J̃ᵀ(J̃z + ε) for each standard normal z and a standard normal ε."""
    r = problem.data.whitened_residual.double()
    noise = problem.data.draw_noise(z.shape[1], generator).double()
    sides = problem.operators.whitened.rmatmat(torch.cat([r.unsqueeze(1), noise], dim=1))
    if z.shape[1]:
        sides[:, 1:] += normal(z)
    return sides
