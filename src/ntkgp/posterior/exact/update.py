"""Append rows to the Cholesky factor of an exact posterior."""

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp.linalg.growing_cholesky import GrowingCholesky
from ntkgp.posterior.exact.factorise import STABLE_ERROR, check_memory, factorise_problem, warn_if_rounded
from ntkgp.problem.problem import Problem

GOLDEN_RATIO = 0.6180339887498949  # its multiples modulo 1 spread evenly, so the checked points do too


def add_rows(
    before: GrowingCholesky, old: Problem, new: Problem, whole: Problem
) -> tuple[GrowingCholesky, Float[Tensor, "NC"], float, bool]:
    """Return the factor, α, the backward error of α, and whether everything was factorised again.

    Appending rows is stable, so errors do not accumulate. Measure the residuals of the new rows and of one old point (a
    different one each time), or of all rows after a merge into one matrix. If a residual is too large for a
    stable factorisation, factorise everything again.
    """
    check_memory(whole, 2)
    cross = old.operators.cross(new.operators.jacobian) / new.data.noise_std.unsqueeze(1)
    block = new.operators.gram()
    block.diagonal().add_(1.0)
    cholesky = before.extended(cross, block)
    if cholesky is None:
        return *factorise_problem(whole), True
    r, count = whole.data.whitened_residual, len(before)
    alpha = cholesky.solve(r.unsqueeze(1)).squeeze(1)
    if cholesky.count == 0:  # the rows were merged into one matrix: check all of them
        rows, operator = slice(None), whole.operators.whitened
        product = operator.matmat(operator.rmatmat(alpha.unsqueeze(1))).squeeze(1) + alpha
    else:  # check the new rows and one old point
        C, std = whole.outputs, whole.data.noise_std
        turn = int(whole.data.points * GOLDEN_RATIO % 1 * old.data.points)
        rows = [*range(turn * C, (turn + 1) * C), *range(count, len(r))]
        kernel = whole.operators.cross(whole.operators.at(whole.data.x[turn : turn + 1]))
        first = kernel @ alpha / std[rows[:C]] + alpha[rows[:C]]
        product = torch.cat([first, cross @ alpha[:count] + block @ alpha[count:]])
    residual = product + cholesky.jitter * alpha[rows] - r[rows]
    error = cholesky.backward_error(residual, alpha, r)
    if not error <= STABLE_ERROR * torch.finfo(alpha.dtype).eps:
        return *factorise_problem(whole), True
    warn_if_rounded(residual, r)
    return cholesky, alpha, error, False
