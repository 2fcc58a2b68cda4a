"""Monte Carlo dropout: Gal & Ghahramani, "Dropout as a Bayesian Approximation", ICML 2016.

Dropout before every layer, squared loss; the rate among 0.005, 0.01, 0.05 and 0.1 and a noise of one std for all points, both
by held-out points: the authors' grid (yaringal/DropoutUncertaintyExps). Their weight decay, 10⁻⁶ at most, is left out, as in
``benchmarks/quality/dropout.py``, which has their one hidden layer, 4000 epochs and the mixture over passes as density. Here
the density is the Gaussian with the moments of 1000 passes, as for all methods.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.alternatives.protocol import HIDDEN, Learner, Moments, learn
from benchmarks.quality.data import Split
from benchmarks.quality.dropout import RATES, _passes
from benchmarks.quality.scores import Forecast


class Dropout(Learner):
    """A network for each rate."""

    def __init__(self, split: Split, rates: Sequence[float]):
        super().__init__(len(rates), (split.x.shape[1], *HIDDEN, 1), torch.relu, rates)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Half the mean squared error under fresh masks."""
        return 0.5 * (self(x)[:, :, 0] - y).square().mean(1).sum()

    def moments(self, x: Tensor, precise: bool) -> Moments:
        """Mean and variance over passes."""
        passes = _passes(self, x, 1000 if precise else 50)
        return Moments(passes.mean(0), passes.var(0))


def mc_dropout(split: Split, *, seed: int, **options) -> Forecast:
    """Rate and noise chosen, then one network."""
    return learn(Dropout, RATES, split, seed=seed, **options)[0]
