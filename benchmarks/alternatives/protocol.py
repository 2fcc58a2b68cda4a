"""The rules that all trained methods share: one network, one training budget, one tuning budget.

* Network: two hidden layers of 50 ReLU units. Adam with rate 0.003 in batches of 100, at most 6000 steps or 3000 epochs
  while values and epochs are chosen; the last fit has as many epochs, and up to a quarter more steps.
* Tuning: a fifth of the training points, drawn at random, is held out. Each method has one hyper-parameter of four values: four
  fits, trained side by side. At 25 moments of their training the held-out points are predicted; the least negative
  log-likelihood chooses value and epochs. With them goes what needs no fit: the std of the noise, where a method does not
  learn it, and the scale of the variance, where it has none of its own. Then one fit to all training points: five in all.

A method is a :class:`Learner`: its loss, and what it predicts. float32, seeded by the seed of the run.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.quality.data import Split
from benchmarks.quality.scores import Forecast, gaussian_log_density
from benchmarks.quality.stacked import Stack, train
from benchmarks.quality.timing import querying

HIDDEN = (50, 50)
BATCH, RATE, STEPS, MOST, MOMENTS = 100, 3e-3, 6000, 3000, 25
FITS = 4  # on the held-out part: as many as a hyper-parameter has values
NOISES = torch.logspace(-2.5, 0.25, 34)  # std of the noise in units of the target's std


class Moments(NamedTuple):
    """What candidates predict, each ``(candidates, queries)``."""

    mean: Tensor
    variance: Tensor  # epistemic
    noise: Tensor | None = None  # variance of the noise; None where it is not learned


class Learner(Stack):
    """Networks for some values of a hyper-parameter, trained side by side; the values differ, nothing else does."""

    scales: tuple[float, ...] = (1.0,)  # of the epistemic std, to be chosen on held-out points

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The sum over members of each one's mean loss on its batch, ``(members, batch, features)``."""
        raise NotImplementedError

    def targets(self, y: Tensor) -> Tensor:
        """What is learned: y itself, or y with columns of its own beside it."""
        return y

    def moments(self, x: Tensor, precise: bool) -> Moments:
        """What the networks say at x; `precise` where it is the forecast, else it is one of many looks."""
        raise NotImplementedError


Make = Callable[[Split, Sequence[float]], Learner]


class Choice(NamedTuple):
    """What the held-out points chose; std of the noise and scale in units of the split they were chosen on."""

    value: float
    epochs: int
    noise: float
    scale: float


def trained(make: Make, split: Split, values: Sequence[float], epochs: int, *, watch: Callable[[Learner], None] | None = None,
            every: int = 1) -> Learner:  # fmt: skip
    """A fit of each value; from the global generator."""
    learner = make(split, values)
    x, y = split.x.float(), learner.targets(split.y.float())
    train(learner, lambda _, x, y: learner.loss(x, y), x, y, epochs=epochs, batch=BATCH, rate=RATE, every=every,
          watch=None if watch is None else lambda _: watch(learner))  # fmt: skip
    return learner


def choose(make: Make, split: Split, values: Sequence[float], seed: int, steps: int = STEPS) -> Choice:
    """Value, epochs, noise and scale by the likelihood of held-out training points: `FITS` fits."""
    assert len(values) == FITS
    inner = split.validation(seed)
    target = ((inner.y_test - inner.center) / inner.scale).float()
    epochs = max(1, min(MOST, steps // -(-len(inner.x) // BATCH)))
    every = max(1, epochs // MOMENTS)
    found: list[tuple[float, Choice]] = []

    def look(learner: Learner) -> None:
        with torch.no_grad():
            mean, variance, learned = learner.moments(inner.x_test.float(), False)
        noises = NOISES.square().view(-1, 1, 1) if learned is None else learned.unsqueeze(0)
        spreads = torch.tensor(learner.scales).view(-1, 1, 1, 1) * variance.sqrt()
        std = (spreads.square() + noises).sqrt()  # (scales, noises, values, queries)
        loss = -gaussian_log_density(target, mean, std).mean(3).nan_to_num(torch.inf)
        scale, noise, value = (int(k) for k in torch.unravel_index(loss.argmin(), loss.shape))
        taken = float(NOISES[noise]) if learned is None else 0.0
        moment = every * (len(found) + 1)
        found.append((float(loss.min()), Choice(values[value], moment, taken, learner.scales[scale])))

    trained(make, inner, values, epochs, watch=look, every=every)
    best = min(found, key=lambda pair: pair[0])[1]
    return best._replace(noise=best.noise * inner.scale / split.scale)  # the inner split has units of its own


def learn(make: Make, values: Sequence[float], split: Split, *, seed: int, device: str = "cpu", steps: int = STEPS,
          choice: Choice | None = None) -> tuple[Forecast, Learner]:  # fmt: skip
    """Tune, unless it is known what to take, fit, forecast."""
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
