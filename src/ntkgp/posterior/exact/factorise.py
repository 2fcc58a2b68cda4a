"""Factorise Ã = I + K̃ and solve α = Ã⁻¹r̃; warn if rounding changes the answer."""

import math
import warnings

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.errors import NumericalWarning
from ntkgp._system.memory import free_bytes
from ntkgp.linalg.growing_cholesky import GrowingCholesky
from ntkgp.problem.problem import Problem

SILENT_MEAN_SHIFT = 0.1  # largest error of the mean by rounding without a warning, in posterior standard deviations
SILENT_VARIANCE_CHANGE = 0.05  # largest relative error of the variance by rounding without a warning
STABLE_ERROR = 100  # largest backward error of a stable factorisation, in rounding units


def factorise_problem(problem: Problem) -> tuple[GrowingCholesky, Float[Tensor, "NC"], float]:
    """Return the factor of Ã, α, and the backward error of α. Cost: (N·C)³/3 operations; memory three N·C × N·C matrices."""
    check_memory(problem, 3)
    matrix = problem.operators.gram()
    matrix.diagonal().add_(1.0)
    cholesky = GrowingCholesky.of(matrix)
    r = problem.data.whitened_residual
    alpha = cholesky.solve(r.unsqueeze(1)).squeeze(1)
    residual = matrix @ alpha + cholesky.jitter * alpha - r
    # Jitter is larger than rounding and has a separate warning.
    warn_if_rounded(residual, r, 0.0 if cholesky.jitter else float(matrix.diagonal().sum()))
    return cholesky, alpha, cholesky.backward_error(residual, alpha, r)


def warn_if_rounded(residual: Float[Tensor, "some"], r: Float[Tensor, "NC"], trace: float = 0.0) -> None:
    """Warn if rounding changes the answer by a visible part of its uncertainty.

    With ρ = Ãα − r̃, the error of the mean at x is k̃ᵀÃ⁻¹ρ. This is at most ‖ρ‖ posterior standard deviations, because ‖Ã⁻¹k̃‖²
    is at most the variance at x. `residual` contains some or all entries of ρ. Rounding of the targets is not counted.
    Rounding in Ã acts like a relative change of the noise by the trace of Ã times the rounding unit.
    """
    eps = torch.finfo(residual.dtype).eps
    shift, of_targets = float(residual.norm()) * math.sqrt(len(r) / len(residual)), STABLE_ERROR * eps * float(r.norm())
    blur = trace * eps
    if shift > max(SILENT_MEAN_SHIFT, of_targets) or blur > SILENT_VARIANCE_CHANGE:
        warnings.warn(
            f"noise_var is so small relative to the kernel that rounding in {residual.dtype} may change the mean by about "
            f"{shift:.1g} posterior standard deviations and the variance by {min(1.0, blur):.0%}; raise noise_var, or use "
            "method=ntkgp.LowRank(...), which solves for the weights instead",
            NumericalWarning,
            stacklevel=5,
        )


def check_memory(problem: Problem, matrices: int) -> None:
    """Raise if `matrices` N·C × N·C matrices (factor, matrix, working memory) do not fit into free memory."""
    needed = matrices * problem.data.residual.element_size() * len(problem.data.residual) ** 2
    if needed > (free := free_bytes(problem.network.device)):
        raise ValueError(
            f"the exact posterior of {problem.data.points} points needs {needed / 2**30:.1f} GiB more memory, but only "
            f"{free / 2**30:.1f} GiB are free; fit all data with method=ntkgp.LowRank(...), then update that posterior"
        )
