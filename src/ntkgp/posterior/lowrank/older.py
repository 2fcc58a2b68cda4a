"""The draws of a saved low-rank posterior, also from files of the version before, which estimated by differences."""

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp.linalg.cgls import Solution
from ntkgp.problem.problem import Problem
from ntkgp.storage.state import State

DOUBLE = torch.float64


def restore_draws(state: State, problem: Problem) -> tuple[Float[Tensor, "P S"], Solution]:
    """The right-hand sides of the mean and the draws, and their solutions.

    Older files hold weights z from the prior and the solution x of Hx = Gz + J̃ᵀε. Then z − x is a posterior draw, and its
    right-hand side is H(z − x).
    """
    z = state.tensor("z", "P T", DOUBLE) if state.older else None
    sides = state.tensor("sides", "P S" if z is None else "P 1+T", DOUBLE)
    if not sides.shape[1]:
        raise ValueError("tensor 'sides' must have at least one column, that of the mean")
    if z is None:
        return sides, state.build(Solution, "solution", DOUBLE, x="P S", errors="S")
    state.tensors["solution.errors"] = torch.zeros(sides.shape[1], dtype=DOUBLE, device=sides.device)
    old = state.build(Solution, "solution", DOUBLE, x="P 1+T", errors="1+T")
    x = torch.cat([old.x[:, :1], z - old.x[:, 1:]], dim=1)
    if problem.data.batches is None:  # without the points there can be no update, which is what the sides are for
        drawn = x[:, 1:] + problem.operators.normal(x[:, 1:]) if z.shape[1] else z
        sides = torch.cat([sides[:, :1], drawn], dim=1)
    return sides, Solution(x, old.iterations, old.accuracy, old.gradient_ratio, old.converged, old.errors)
