"""One ordinary network of a split, trained beforehand for methods that start from a trained network."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.methods.training.budget import learn
from benchmarks.methods.training.learner import PENALTIES, SILU, Learner, Ordinary, scaled_targets, trained
from benchmarks.methods.training.search import search
from benchmarks.timing import shared
from benchmarks.uci import Split

Trained = tuple[nn.Sequential, dict[str, Any]]  # a network in float64, and how it was trained
SMOOTH = partial(Ordinary, activation=SILU)


def budget_network(split: Split, seed: int, device: str = "cpu", **options: Any) -> Trained:
    """ReLU; the likelihood of held-out points chooses penalty and epochs within the common budget."""

    def make() -> Trained:
        forecast, learner = learn(Ordinary, PENALTIES, split, seed=seed, device=device, **options)
        return learner.module(), forecast.chosen

    return shared(("budget network", *split.key, seed, *options.items()), make, device)


def searched_network(split: Split, seed: int, device: str = "cpu", steps: int = 20_000) -> Trained:
    """SiLU; the squared error of a fifth of the training points chooses penalty and epochs; at most ``steps`` steps."""

    def make() -> Trained:
        torch.manual_seed(seed)
        penalty, epochs = search(SMOOTH, split.validation(seed), _squared_error, rate=3e-3, steps=steps, device=device)
        learner = trained(SMOOTH, split, [penalty], epochs, rate=3e-3, device=device)
        return learner.module(), {"penalty": penalty, "epochs": epochs, "learning_rate": 3e-3}

    return shared(("searched network", *split.key, seed, device, steps), make, device)


@torch.no_grad()
def _squared_error(learner: Learner, split: Split) -> Tensor:
    mean = learner.moments(split.x_test.to(learner.weights[0]), True).mean
    return (mean - scaled_targets(split, mean)).square().mean(1)
