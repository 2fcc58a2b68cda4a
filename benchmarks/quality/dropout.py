"""Monte Carlo dropout: Gal & Ghahramani, "Dropout as a Bayesian Approximation", ICML 2016.

Settings of the authors' repository (yaringal/DropoutUncertaintyExps, experiment of 100 × 40 epochs and one hidden layer, whose
per-split results are the published row): 50 ReLU units, dropout before both layers, squared loss, Adam with rate 0.001, batches
of 128, 4000 epochs. A fifth of the training points chooses the dropout rate among 0.005, 0.01, 0.05 and 0.1 and the precision τ
of the noise, by the mixture log-likelihood; then a network is trained on all of them. The density of a target is the mixture
``1/T Σ_t N(y; f_t(x), 1/τ)`` over T = 10,000 passes. Their weight decay, ``10⁻⁴ (1 - p) / (2 N τ)`` with τ in raw units, is
10⁻⁶ at most and mostly far less; it is left out, so one network is trained for each rate, whatever τ.

:func:`mc_dropout_published` has the authors' three values of τ for each set. On several sets the best lies at the edge of that
grid, which costs likelihood; :func:`mc_dropout` has the same networks with τ from a fine grid that covers any set.
"""

import math

import torch
from torch import Tensor, nn

from benchmarks.quality.data import Split
from benchmarks.quality.scores import Forecast
from benchmarks.quality.stacked import Stack, squared_loss, train
from benchmarks.quality.timing import shared

RATES = (0.005, 0.01, 0.05, 0.1)
PUBLISHED_PRECISIONS = {
    "concrete": (0.025, 0.05, 0.075),
    "energy": (0.25, 0.5, 0.75),
    "kin8nm": (150.0, 200.0, 250.0),
    "power": (0.05, 0.1, 0.15),
    "wine": (2.5, 3.0, 3.5),
    "yacht": (0.25, 0.5, 0.75),
}
NOISES = torch.logspace(-2.5, 0.25, 34)  # std of the noise in units of the target's std


def mc_dropout(split: Split, *, seed: int, device: str = "cpu", epochs: int = 4000, samples: int = 10_000) -> Forecast:
    """With the precision chosen from a fine grid."""
    return _mc_dropout(split, NOISES, seed, device, epochs, samples)


def mc_dropout_published(split: Split, *, seed: int, device: str = "cpu", epochs: int = 4000,
                         samples: int = 10_000) -> Forecast:  # fmt: skip
    """With the precision chosen from the authors' grid for this set."""
    precisions = torch.tensor(PUBLISHED_PRECISIONS[split.name])
    return _mc_dropout(split, precisions.rsqrt() / split.scale, seed, device, epochs, samples)


def _mc_dropout(split: Split, noises: Tensor, seed: int, device: str, epochs: int, samples: int) -> Forecast:
    """Noises are standard deviations in units of the standardised target."""
    inner = split.validation(seed)
    candidates = _trained(inner, RATES, seed, device, epochs)
    torch.manual_seed(seed)
    passes = _passes(candidates, inner.x_test.to(device), max(1, samples // 10))
    target = ((inner.y_test - inner.center) / inner.scale).to(passes)
    inside = (noises * split.scale / inner.scale).tolist()  # the inner split has units of its own
    likelihoods = torch.stack([_mixture(passes, target, noise).mean(1) for noise in inside], 1)  # (rates, noises)
    best = int(likelihoods.argmax())
    rate, noise = RATES[best // len(noises)], float(noises[best % len(noises)])

    last = _trained(split, (rate,), seed, device, epochs)
    final = _passes(last, split.x_test.to(device), samples)[:, 0].cpu()  # (T, queries)
    mean, std = final.mean(0), (final.var(0, correction=0) + noise**2).sqrt()
    gaussian = split.forecast(mean, std, final.std(0, correction=0))

    def log_density(y: Tensor) -> Tensor:
        target = ((y - split.center) / split.scale).float()
        return _mixture(final.unsqueeze(1), target, noise)[0] - math.log(split.scale)

    chosen = {"rate": rate, "precision": (noise * split.scale) ** -2, "epochs": epochs, "samples": samples}
    return Forecast(gaussian.mean, gaussian.std, log_density, chosen, gaussian.epistemic)


def _trained(split: Split, rates: tuple[float, ...], seed: int, device: str, epochs: int) -> Stack:
    """A network for each rate; both methods have the same ones."""

    def make() -> Stack:
        torch.manual_seed(seed)
        stack = Stack(len(rates), (split.x.shape[1], 50, 1), nn.functional.relu, rates).to(device)
        x, y = split.x.to(device, torch.float32), split.y.to(device, torch.float32)
        loss = squared_loss(torch.zeros(len(rates), device=device))
        train(stack, loss, x, y, epochs=epochs, batch=128, rate=1e-3)
        return stack

    key = ("dropout", split.name, split.kind, split.index, len(split.x), rates, seed, device, epochs)
    return shared(key, make, device)


@torch.no_grad()
def _passes(stack: Stack, x: Tensor, samples: int, room: int = 2_000_000) -> Tensor:
    """``(samples, M, queries)``: the outputs of as many passes, each query with masks of its own."""
    x, done = x.float(), []
    at_once = max(1, room // (len(x) * len(stack.rates) * 50))
    for start in range(0, samples, at_once):
        count = min(at_once, samples - start)
        out = stack(x.repeat(count, 1))[:, :, 0]
        done.append(out.view(len(out), count, len(x)).transpose(0, 1))
    return torch.cat(done)


def _mixture(passes: Tensor, target: Tensor, noise: float) -> Tensor:
    """``(M, queries)``: log densities of the target under the mixture of Gaussians around the passes."""
    logs = ((passes - target) / noise).square_().mul_(-0.5).logsumexp(0)
    return logs - math.log(len(passes)) - math.log(noise) - 0.5 * math.log(2 * math.pi)
