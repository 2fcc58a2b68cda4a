"""Methods and posteriors.

The ``Method`` and ``Posterior`` interfaces, predictions and samples, the main function ``fit``, and one folder per method:
``exact``, ``lowrank``, ``trained``. The paper's procedures are in ``paper``. Hyper-parameters are fixed here; ``tuning``
searches for them.
"""

from ntkgp.posterior.interface import Posterior
from ntkgp.posterior.samples import FunctionSample
from ntkgp.posterior.trained.covariance import DrawnCovariance, PaperCovariance, TightCovariance
from ntkgp.posterior.trained.own_loop import TrainingPlan

__all__ = ["DrawnCovariance", "FunctionSample", "PaperCovariance", "Posterior", "TightCovariance", "TrainingPlan"]
