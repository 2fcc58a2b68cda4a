"""The door to diagnostics: held-out scores, calibration, and whether a trained network is still described by its tangent."""

from ntkgp.apps.diagnostics.evaluation import Evaluation, evaluate
from ntkgp.apps.diagnostics.kernel_regime import KernelRegime, kernel_regime
from ntkgp.apps.diagnostics.report import Report, report

__all__ = ["Evaluation", "KernelRegime", "Report", "evaluate", "kernel_regime", "report"]
