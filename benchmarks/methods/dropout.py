"""Monte Carlo dropout: Gal & Ghahramani, "Dropout as a Bayesian Approximation", ICML 2016.

Dropout before every layer and the squared loss. Held-out training points choose the dropout rate among 0.005, 0.01, 0.05 and
0.1 and one std of the noise. The authors' weight decay, ``10⁻⁴ (1 - p) / (2 N τ)`` with τ in raw units, is 10⁻⁶ at most and
mostly far less; it is left out.

:func:`mc_dropout_published` has the settings of the authors' repository (yaringal/DropoutUncertaintyExps, experiment of
100 × 40 epochs and one hidden layer, whose per-split results are the published row): 50 ReLU units, Adam with rate 0.001,
batches of 128, 4000 epochs. A fifth of the training points chooses rate and precision τ of the noise by the mixture
log-likelihood, then a network is trained on all points. The density of a target is the mixture ``1/T Σ_t N(y; f_t(x), 1/τ)``
over T = 10,000 passes. The authors try three values of τ for each set; on several sets the best is at the edge of that grid,
which costs likelihood. :func:`mc_dropout` has the same networks with τ from a fine grid that covers any set.
:func:`mc_dropout_budget` has the common budget, and the Gaussian with the moments of 1000 passes as density.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.methods.training.budget import NOISES, learn
from benchmarks.methods.training.learner import HIDDEN, RELU, Learner, Moments, scaled_targets, trained
from benchmarks.scores import Forecast
from benchmarks.timing import shared
from benchmarks.uci import Split

RATES = (0.005, 0.01, 0.05, 0.1)
PUBLISHED_PRECISIONS = {
    "concrete": (0.025, 0.05, 0.075), "energy": (0.25, 0.5, 0.75), "kin8nm": (150.0, 200.0, 250.0),
    "power": (0.05, 0.1, 0.15), "wine": (2.5, 3.0, 3.5), "yacht": (0.25, 0.5, 0.75),
}  # fmt: skip


class Dropout(Learner):
    """A network for each rate."""

    def __init__(self, split: Split, rates: Sequence[float], hidden: Sequence[int] = HIDDEN):
        super().__init__(len(rates), (split.x.shape[1], *hidden, 1), RELU, rates)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Half the mean squared error under fresh masks."""
        return 0.5 * (self(x)[:, :, 0] - y).square().mean(1).sum()

    def moments(self, x: Tensor, precise: bool) -> Moments:
        """Mean and variance over passes."""
        passes = self.passes(x, 1000 if precise else 50)
        return Moments(passes.mean(0), passes.var(0))

    @torch.no_grad()
    def passes(self, x: Tensor, samples: int, room: int = 2_000_000) -> Tensor:
        """``(samples, rates, queries)``: the outputs of so many passes, each query with masks of its own."""
        x, done = x.float(), []
        at_once = max(1, room // (len(x) * len(self.rates) * 50))
        for start in range(0, samples, at_once):
            count = min(at_once, samples - start)
            out = self(x.repeat(count, 1))[:, :, 0]
            done.append(out.view(len(out), count, len(x)).transpose(0, 1))
        return torch.cat(done)


def mc_dropout_budget(split: Split, *, seed: int, **options: Any) -> Forecast:
    """Choose rate, epochs and noise within the common budget, then fit one network."""
    return learn(Dropout, RATES, split, seed=seed, **options)[0]


def mc_dropout_published(split: Split, **options: Any) -> Forecast:
    """Choose the precision from the authors' grid for this set."""
    precisions = torch.tensor(PUBLISHED_PRECISIONS[split.name])
    return mc_dropout(split, noises=precisions.rsqrt() / split.scale, **options)


def mc_dropout(split: Split, *, seed: int, device: str = "cpu", epochs: int = 4000, samples: int = 10_000,
               noises: Tensor = NOISES) -> Forecast:  # fmt: skip
    """Choose the std of the noise from ``noises``, in units of the standardised target."""
    inner = split.validation(seed)
    candidates = _authors_networks(inner, RATES, seed, device, epochs)
    torch.manual_seed(seed)
    passes = candidates.passes(inner.x_test.to(device), max(1, samples // 10))
    target = scaled_targets(inner, passes)
    inside = (noises * split.scale / inner.scale).tolist()  # the inner split has units of its own
    likelihoods = torch.stack([_mixture(passes, target, noise).mean(1) for noise in inside], 1)  # (rates, noises)
    best = int(likelihoods.argmax())
    rate, noise = RATES[best // len(noises)], float(noises[best % len(noises)])

    last = _authors_networks(split, (rate,), seed, device, epochs)
    final = last.passes(split.x_test.to(device), samples)[:, 0].cpu()  # (T, queries)
    std = (final.var(0, correction=0) + noise**2).sqrt()
    chosen = {"rate": rate, "precision": (noise * split.scale) ** -2, "epochs": epochs, "samples": samples}
    gaussian = split.forecast(final.mean(0), std, final.std(0, correction=0), **chosen)

    def log_density(y: Tensor) -> Tensor:
        target = ((y - split.center) / split.scale).float()
        return _mixture(final.unsqueeze(1), target, noise)[0] - math.log(split.scale)

    return Forecast(gaussian.mean, gaussian.std, log_density, chosen, gaussian.epistemic)


def _authors_networks(split: Split, rates: tuple[float, ...], seed: int, device: str, epochs: int) -> Dropout:
    """A network for each rate; the two grids of precisions share them."""

    def make() -> Dropout:
        torch.manual_seed(seed)
        found = trained(partial(Dropout, hidden=(50,)), split, rates, epochs, rate=1e-3, batch=128, device=device)
        assert isinstance(found, Dropout)
        return found

    return shared(("dropout", *split.key, rates, seed, device, epochs), make, device)


def _mixture(passes: Tensor, target: Tensor, noise: float) -> Tensor:
    """``(rates, queries)``: log densities of the target under the mixture of Gaussians around the passes."""
    logs = ((passes - target) / noise).square_().mul_(-0.5).logsumexp(0)
    return logs - math.log(len(passes)) - math.log(noise) - 0.5 * math.log(2 * math.pi)
