"""Random network distillation, prior networks: Burda et al., 2018; Ciosek et al., "Conservative Uncertainty Estimation", 2020.

Ten random networks are drawn from a prior and stay fixed; ten predictors are trained to match them on the training inputs.
Where there are data they do, elsewhere they do not: the variance is the mean squared difference over the ten pairs, plus its
standard error (the authors' v̂ with β = 1), which in expectation is never below that of a Gaussian process with the same prior.
A predictor has one more hidden layer than its prior, as the authors ask for one that can follow it. The mean is an ordinary
network, whose penalty is chosen. The prior has no scale that would be known for a table, so held-out points choose it; that
costs no fit.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from benchmarks.methods.training.budget import learn
from benchmarks.methods.training.learner import HIDDEN, PENALTIES, RELU, Moments, Ordinary
from benchmarks.methods.training.stack import Stack
from benchmarks.scores import Forecast
from benchmarks.uci import Split

PAIRS = 10


class PriorNetworks(Ordinary):
    """An ordinary network for each penalty, and ten pairs for all."""

    scales = tuple(10 ** (k / 4) for k in range(-6, 7))

    def __init__(self, split: Split, penalties: Sequence[float]):
        super().__init__(split, penalties)
        features = split.x.shape[1]
        self.prior = Stack(PAIRS, (features, *HIDDEN, 1), RELU).requires_grad_(False)
        for bias in self.prior.biases:
            bias.normal_(0, 0.5)  # else all of them are zero at the origin
        self.predictors = Stack(PAIRS, (features, *HIDDEN, HIDDEN[-1], 1), RELU)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """That of the ordinary networks, and that of the predictors on one of the batches."""
        return super().loss(x, y) + 0.5 * self._differences(x[0]).mean(1).sum()

    def _differences(self, x: Tensor) -> Tensor:
        """``(pairs, batch)``: squared."""
        return (self.predictors(x) - self.prior(x))[:, :, 0].square()

    def moments(self, x: Tensor, precise: bool) -> Moments:
        """The networks' mean, the pairs' variance."""
        mean, squares = self(x)[:, :, 0], self._differences(x)
        variance = squares.mean(0) + squares.std(0) / PAIRS**0.5
        return Moments(mean, variance.expand_as(mean))


def prior_networks(split: Split, *, seed: int, **options: Any) -> Forecast:
    """Choose penalty, epochs, noise and scale, then fit one network and ten pairs."""
    forecast, learner = learn(PriorNetworks, PENALTIES, split, seed=seed, **options)
    forecast.chosen["networks"] = len(learner.weights[0]) + PAIRS
    return forecast
