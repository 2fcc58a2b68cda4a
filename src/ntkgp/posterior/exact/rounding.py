"""Warn if rounding may change an exact answer by a visible part of its uncertainty."""

import warnings

import torch

from ntkgp._system.errors import NumericalWarning

SILENT_MEAN_SHIFT = 0.1  # largest error of the mean by rounding without a warning, in posterior standard deviations
SILENT_VARIANCE_CHANGE = 0.05  # largest relative error of the variance by rounding without a warning
STABLE_ERROR = 100  # largest backward error of a stable factorisation, in rounding units


def warn_if_rounded(
    shift: float, targets: float, eps: float, *, trace: float = 0.0, unit: float = 0.0, misfit: float = 0.0
) -> None:
    """Warn if rounding changes the answer by a visible part of its uncertainty.

    Rounding in the factorised matrix acts like a relative change of the noise by its trace times the rounding unit. If the
    network itself rounds to a coarser unit, the mean moves as for :class:`LowRank`, by ‖J̃‖ times the misfit √(r̃ᵀÃ⁻¹r̃). Rounding
    of the targets is not counted.

    Args:
        shift: a bound on the error of the mean from the residual of its linear system, in posterior standard deviations.
        targets: ‖r̃‖.
        eps: the rounding unit of the factorisation.
        trace: the trace of the factorised matrix.
        unit: the rounding unit of the network.
        misfit: √(r̃ᵀÃ⁻¹r̃).
    """
    blur = trace * max(eps, unit)
    if unit > eps:
        shift += 2 * trace**0.5 * unit * misfit
    if shift > max(SILENT_MEAN_SHIFT, STABLE_ERROR * eps * targets) or blur > SILENT_VARIANCE_CHANGE:
        warnings.warn(
            f"noise_var is so small relative to the kernel that rounding to {max(eps, unit):.0e} may change the mean by about "
            f"{shift:.1g} posterior standard deviations and the variance by {min(1.0, blur):.0%}; raise noise_var, or use "
            "method=ntkgp.LowRank(...), which solves for the weights instead",
            NumericalWarning,
            stacklevel=6,
        )


def rounding_unit(dtype: torch.dtype) -> float:
    """The rounding unit of a dtype."""
    return torch.finfo(dtype).eps
