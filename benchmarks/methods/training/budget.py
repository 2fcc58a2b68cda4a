"""The rules that all trained methods of the alternatives share: one network, one training budget, one tuning budget.

* Network: two hidden layers of 50 ReLU units. Adam with rate 0.003 in batches of 100, for at most 6000 steps or 3000 epochs
  while values and epochs are chosen; the last fit has as many epochs, and up to a quarter more steps.
* Tuning: a fifth of the training points, drawn at random, is held out. Each method has one hyper-parameter of four values: four
  fits, trained side by side. At 25 moments of their training the held-out points are predicted; the least negative
  log-likelihood chooses value and epochs. It also chooses what needs no fit: the std of the noise, if a method does not
  learn it, and the scale of the variance, if a method has none of its own. Then one fit to all training points: five in all.

A method is a :class:`Learner`: its loss, and what it predicts. float32, seeded by the seed of the run.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from benchmarks.methods.training.learner import BATCH, Learner, Make, scaled_targets, trained
from benchmarks.methods.training.search import MOST_EPOCHS
from benchmarks.scores import Forecast, gaussian_log_density
from benchmarks.timing import querying
from benchmarks.uci import Split

STEPS, MOMENTS = 6000, 25
FITS = 4  # on the held-out part: one for each value of the hyper-parameter
NOISES = torch.logspace(-2.5, 0.25, 34)  # std of the noise in units of the target's std


class Choice(NamedTuple):
    """What the held-out points chose; std of the noise and scale in units of the split they were chosen on."""

    value: float
    epochs: int
    noise: float
    scale: float


def choose(make: Make, split: Split, values: Sequence[float], seed: int, steps: int = STEPS) -> Choice:
    """Value, epochs, noise and scale by the likelihood of held-out training points: `FITS` fits."""
    assert len(values) == FITS
    inner = split.validation(seed)
    epochs = max(1, min(MOST_EPOCHS, steps // -(-len(inner.x) // BATCH)))
    every = max(1, epochs // MOMENTS)
    found: list[tuple[float, Choice]] = []

    def look(learner: Learner) -> None:
        with torch.no_grad():
            mean, variance, learned = learner.moments(inner.x_test.float(), False)
        noises = NOISES.square().view(-1, 1, 1) if learned is None else learned.unsqueeze(0)
        spreads = torch.tensor(learner.scales).view(-1, 1, 1, 1) * variance.sqrt()
        std = (spreads.square() + noises).sqrt()  # (scales, noises, values, queries)
        loss = -gaussian_log_density(scaled_targets(inner, mean), mean, std).mean(3).nan_to_num(torch.inf)
        scale, noise, value = (int(k) for k in torch.unravel_index(loss.argmin(), loss.shape))
        taken = float(NOISES[noise]) if learned is None else 0.0
        moment = every * (len(found) + 1)
        found.append((float(loss.min()), Choice(values[value], moment, taken, learner.scales[scale])))

    trained(make, inner, values, epochs, watch=look, every=every)
    best = min(found, key=lambda pair: pair[0])[1]
    return best._replace(noise=best.noise * inner.scale / split.scale)  # the inner split has units of its own


def learn(make: Make, values: Sequence[float], split: Split, *, seed: int, device: str = "cpu", steps: int = STEPS,
          choice: Choice | None = None) -> tuple[Forecast, Learner]:  # fmt: skip
    """Tune, unless the choice is given, then fit and forecast."""
    assert device == "cpu", f"these methods run on the CPU, got {device!r}"
    torch.manual_seed(seed)
    tuning = 0 if choice else FITS
    choice = choice or choose(make, split, values, seed, steps)
    learner = trained(make, split, [choice.value], choice.epochs)
    with querying(device), torch.no_grad():
        found = learner.moments(split.x_test.float(), True)
    spread = choice.scale * found.variance[0].sqrt()
    noise = torch.full_like(spread, choice.noise**2) if found.noise is None else found.noise[0]
    chosen: dict[str, Any] = {**choice._asdict(), "tuning_fits": tuning, "fits": 1, "networks": len(learner.weights[0])}
    return split.forecast(found.mean[0], (spread.square() + noise).sqrt(), spread, **chosen), learner
