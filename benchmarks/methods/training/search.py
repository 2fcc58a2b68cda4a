"""Choose a penalty on the weights and a number of epochs on a validation part of the training points."""

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.methods.training.learner import BATCH, PENALTIES, Learner, Make, trained
from benchmarks.uci import Split

MOST_EPOCHS = 3000


def search(make: Make, inner: Split, quality: Callable[[Learner, Split], Tensor], *, rate: float, steps: int,
           device: str) -> tuple[float, int]:  # fmt: skip
    """The penalty and the number of epochs with the least ``quality``.

    All penalties are trained side by side, for at most 3000 epochs and at most ``steps`` steps. A hundred times during training
    ``quality(learner, inner)`` returns one number per penalty; less is better.
    """
    epochs = max(1, min(MOST_EPOCHS, steps // -(-len(inner.x) // BATCH)))
    every = max(1, epochs // 100)
    seen: list[Tensor] = []
    trained(make, inner, PENALTIES, epochs, rate=rate, device=device, every=every,
            watch=lambda learner: seen.append(quality(learner, inner)))  # fmt: skip
    values = torch.stack(seen).cpu().nan_to_num(torch.inf)  # (looks, penalties)
    best = int(values.argmin())
    return PENALTIES[best % len(PENALTIES)], every * (best // len(PENALTIES) + 1)
