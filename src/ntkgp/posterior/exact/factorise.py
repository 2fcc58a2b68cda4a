"""Ã = I + K̃ factorised and α = Ã⁻¹r̃, with a warning when rounding moves the answer."""

import math
import warnings

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.errors import NumericalWarning
from ntkgp._system.memory import free_bytes
from ntkgp.linalg.growing_cholesky import GrowingCholesky
from ntkgp.problem.problem import Problem

UNNOTICED_SHIFT = 0.1  # posterior standard deviations that rounding may move the mean by without a warning
UNNOTICED_BLUR = 0.05  # relative change of the variance that rounding may cause without a warning
TRUSTED = 100  # times the rounding unit: the largest backward error of a stable factorisation


def factorise_problem(problem: Problem) -> tuple[GrowingCholesky, Float[Tensor, "NC"], float]:
    """The factor of Ã, α, and the backward error of α. Cost: (N·C)³/3 operations; memory three N·C × N·C matrices."""
    check_memory(problem, 3)
    matrix = problem.operators.gram()
    matrix.diagonal().add_(1.0)
    cholesky = GrowingCholesky.of(matrix)
    r = problem.data.whitened_residual
    alpha = cholesky.solve(r.unsqueeze(1)).squeeze(1)
    residual = matrix @ alpha + cholesky.jitter * alpha - r
    # Jitter has its own warning, and is more than rounding.
    warn_if_rounded(residual, r, 0.0 if cholesky.jitter else float(matrix.diagonal().sum()))
    return cholesky, alpha, cholesky.backward_error(residual, alpha, r)


def warn_if_rounded(residual: Float[Tensor, "some"], r: Float[Tensor, "NC"], trace: float = 0.0) -> None:
    """Warn when rounding moves the answer by a visible part of its uncertainty.

    With ρ = Ãα − r̃ the mean at x is off by k̃ᵀÃ⁻¹ρ, at most ‖ρ‖ posterior standard deviations, since ‖Ã⁻¹k̃‖² is at most the
    variance at x; `residual` holds some or all of the entries of ρ. The rounding of the targets themselves is not counted.
    Rounding in Ã acts as more or less noise, by a relative amount of its trace times the rounding unit.
    """
    eps = torch.finfo(residual.dtype).eps
    shift, of_targets = float(residual.norm()) * math.sqrt(len(r) / len(residual)), TRUSTED * eps * float(r.norm())
    blur = trace * eps
    if shift > max(UNNOTICED_SHIFT, of_targets) or blur > UNNOTICED_BLUR:
        warnings.warn(
            f"the noise is so small beside the kernel that rounding in {residual.dtype} may move the mean by some {shift:.1g} "
            f"posterior standard deviations, and the variance by {min(1.0, blur):.0%}; raise noise_var, or use "
            "method=ntkgp.LowRank(...), which solves in weight space",
            NumericalWarning,
            stacklevel=5,
        )


def check_memory(problem: Problem, matrices: int) -> None:
    """Raise if the factor, the matrix beside it and the working memory of the factorisation do not fit."""
    needed = matrices * problem.data.residual.element_size() * len(problem.data.residual) ** 2
    if needed > (free := free_bytes(problem.network.device)):
        raise ValueError(
            f"the exact posterior of {problem.data.points} points needs {needed / 2**30:.1f} GiB more, and {free / 2**30:.1f} "
            "are free; fit all data with method=ntkgp.LowRank(...), whose update goes on from there"
        )
