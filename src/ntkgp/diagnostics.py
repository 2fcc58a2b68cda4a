"""Public names for diagnostics: held-out scores, calibration, and how far a trained network has left its tangent."""

from ntkgp.apps.diagnostics.evaluation import Evaluation, evaluate
from ntkgp.apps.diagnostics.kernel_regime import KernelRegime, kernel_regime
from ntkgp.apps.diagnostics.report import Report, report

__all__ = ["Evaluation", "KernelRegime", "Report", "evaluate", "kernel_regime", "report"]
