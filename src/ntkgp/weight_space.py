"""The linear systems of the mean, the tail and function draws, over the weights rather than the points."""

import math
import warnings
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._types import NumericalWarning
from ntkgp.linalg.cgls import Solution
from ntkgp.problem import Problem
from ntkgp.tangent.memory import free_bytes

ROUNDED = 100  # times as far as its data do rounding move the mean elsewhere


def must_split(problem: Problem, columns: int) -> bool:
    """Whether vectors over the weights are too many for each rank to hold all of them; some six of a head's size are."""
    if problem.shard is None:
        return False
    group, device = problem.shard.group, problem.network.device
    room = free_bytes(device) // 2 if group.memory is None else group.memory
    rank = min(columns, problem.points * problem.outputs, problem.tangent.space.size)
    return group.any(6 * 8 * rank * problem.tangent.space.size > room) and group.size > 1


def warn_if_rounded(problem: Problem, solution: Solution) -> None:
    """Say so when the rounding of J itself, in the dtype of the network, may move the mean by a posterior standard deviation.

    It moves the whitened residuals by some ε‖J̃ᵢ‖‖Δ‖/√P each if errors are independent. ROUNDED is measured: by how much more
    the mean at other points moves, where points nearly coincide and their targets do not (tests/test_properties.py).
    """
    size = math.sqrt(problem.trace / problem.shape[1]) * float(problem.space.norms(solution.x[:, :1]))
    off = ROUNDED * torch.finfo(problem.network.dtype).eps * size
    if off <= 1:
        return
    squares = problem.whitened_residual.double().square().sum()
    given = float(squares if problem.shard is None else problem.shard.group.sum(squares)) ** 0.5
    if size > 3 * given:  # else the rounding of the targets themselves does as much
        warnings.warn(
            f"rounding of the network's derivatives in {problem.network.dtype} may move the mean by some {off:.1g} posterior "
            "standard deviations; use module.double(), or raise noise_var",
            NumericalWarning,
            stacklevel=4,
        )


def rough(problem: Problem) -> Callable[[Tensor], Tensor] | None:
    """G v in float32, where the factors are float32 anyway: faster, and the solver checks itself in float64."""
    if problem.network.dtype != torch.float32 or problem.matrix is not None:
        return None
    return lambda v: problem.normal(v.float()).double()


def right_hand_sides(problem: Problem, z: Float[Tensor, "P T"], generator: torch.Generator | None) -> Float[Tensor, "P 1+T"]:
    """J̃ᵀ r̃, and J̃ᵀ(J̃z + ε) for each standard normal z and a standard normal ε."""
    operator, r = problem.whitened, problem.whitened_residual.double()
    noise = problem.rows_normal(z.shape[1], generator).double()
    sides = operator.rmatmat(torch.cat([r.unsqueeze(1), noise], dim=1))
    if z.shape[1]:
        sides[:, 1:] += problem.normal(z)
    return sides
