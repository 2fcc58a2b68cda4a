"""Deep ensembles: Lakshminarayanan, Pritzel & Blundell, "Simple and Scalable Predictive Uncertainty Estimation", NeurIPS 2017.

Five networks from random initial weights, each with a mean and a variance as outputs and the Gaussian negative log-likelihood
as loss; the forecast has the moments of their mixture. Adversarial training, which the authors find of little use for
regression, is left out. They train for 40 epochs without a penalty; here a penalty on the weights, 0 among its values, and the
epochs are chosen. ``benchmarks/quality/ensemble.py`` has their one hidden layer and 40 epochs.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.alternatives.protocol import HIDDEN, Learner, Moments, learn
from benchmarks.quality.data import Split
from benchmarks.quality.ensemble import MEMBERS, _mean_and_variance, likelihood
from benchmarks.quality.scores import Forecast
from benchmarks.quality.search import PENALTIES


class Ensemble(Learner):
    """Five networks for each penalty."""

    def __init__(self, split: Split, penalties: Sequence[float]):
        super().__init__(MEMBERS * len(penalties), (split.x.shape[1], *HIDDEN, 2), torch.relu)
        self.negative_log_likelihood = likelihood(torch.tensor(penalties).repeat_interleave(MEMBERS))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Negative log-likelihoods and penalties."""
        return self.negative_log_likelihood(self, x, y)

    def moments(self, x: Tensor, precise: bool) -> Moments:
        """The spread of the means is epistemic, the mean of the variances is noise."""
        mean, variance = (part.unflatten(0, (-1, MEMBERS)) for part in _mean_and_variance(self(x)))
        return Moments(mean.mean(1), mean.var(1, correction=0), variance.mean(1))


def deep_ensemble(split: Split, *, seed: int, **options) -> Forecast:
    """Penalty and epochs chosen, then five networks."""
    return learn(Ensemble, PENALTIES, split, seed=seed, **options)[0]
