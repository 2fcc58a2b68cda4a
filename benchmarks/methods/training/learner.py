"""A trained method: networks for several values of one hyper-parameter, their loss and what they predict."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.methods.training.stack import Stack, train
from benchmarks.uci import Split

HIDDEN = (50, 50)  # widths of the hidden layers, unless a method says otherwise
BATCH, RATE = 100, 3e-3
PENALTIES = (0.0, 1e-5, 1e-4, 1e-3)  # on the squares of the weights: the values that are tried
RELU, SILU = nn.ReLU(), nn.SiLU()


class Moments(NamedTuple):
    """What the networks predict, each ``(values, queries)``."""

    mean: Tensor
    variance: Tensor  # epistemic
    noise: Tensor | None = None  # variance of the noise; None if the method does not learn it


class Learner(Stack):
    """Networks for several values of a hyper-parameter, trained side by side; nothing else differs between them."""

    scales: tuple[float, ...] = (1.0,)  # of the epistemic std, to be chosen on held-out points

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The sum over members of each one's mean loss on its batch, ``(members, batch, features)``."""
        raise NotImplementedError

    def targets(self, y: Tensor) -> Tensor:
        """What is learned: y itself, or y with further columns beside it."""
        return y

    def moments(self, x: Tensor, precise: bool) -> Moments:
        """Predictions at x; `precise` for a forecast, not for one of many looks during training."""
        raise NotImplementedError


Make = Callable[[Split, Sequence[float]], Learner]


class Ordinary(Learner):
    """A network with the squared loss for each penalty, with no uncertainty of its own."""

    penalties: Tensor

    def __init__(self, split: Split, penalties: Sequence[float], activation: nn.Module = RELU):
        super().__init__(len(penalties), (split.x.shape[1], *HIDDEN, 1), activation)
        self.register_buffer("penalties", torch.tensor(penalties))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Half the mean squared error, and the penalty times the squares of the weights."""
        return (0.5 * (self(x)[:, :, 0] - y).square().mean(1) + self.penalties * self.squares()).sum()

    def moments(self, x: Tensor, precise: bool) -> Moments:
        """Means alone."""
        mean = self(x)[:, :, 0]
        return Moments(mean, torch.zeros_like(mean))


def trained(make: Make, split: Split, values: Sequence[float], epochs: int, *, rate: float = RATE, batch: int = BATCH,
            device: str = "cpu", watch: Callable[[Learner], None] | None = None, every: int = 1) -> Learner:  # fmt: skip
    """Fit one network or group of networks for each value, with the global random generator; float32."""
    learner = make(split, values).to(device)
    x, y = split.x.to(device, torch.float32), learner.targets(split.y.float()).to(device)
    train(learner, learner.loss, x, y, epochs=epochs, batch=batch, rate=rate, every=every,
          watch=None if watch is None else lambda: watch(learner))  # fmt: skip
    return learner


def scaled_targets(split: Split, like: Tensor) -> Tensor:
    """The test targets in the units of the training targets, with the dtype and device of `like`."""
    return ((split.y_test - split.center) / split.scale).to(like)
