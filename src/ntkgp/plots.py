"""Public names for plots. Each function draws into an Axes and returns it; needs the extra ``ntkgp[cli]``."""

from ntkgp.apps.plots.calibration import calibration, pit, predicted, residuals
from ntkgp.apps.plots.functions import posterior_1d, uncertainty_map
from ntkgp.apps.plots.spectrum import spectrum
from ntkgp.apps.plots.style import DATA, LIGHT, MEAN, TRUTH, figure
from ntkgp.apps.plots.training import learning_curves

__all__ = [
    "DATA",
    "LIGHT",
    "MEAN",
    "TRUTH",
    "calibration",
    "figure",
    "learning_curves",
    "pit",
    "posterior_1d",
    "predicted",
    "residuals",
    "spectrum",
    "uncertainty_map",
]
