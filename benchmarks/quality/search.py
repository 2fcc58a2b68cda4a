"""A penalty on the weights and a number of epochs, chosen on a validation part of the training points."""

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.quality.data import Split
from benchmarks.quality.stacked import Loss, Stack, train

PENALTIES = (0.0, 1e-5, 1e-4, 1e-3)
BATCH = 100


def search(inner: Split, make: Callable[[Split, int, str], Stack], loss: Callable[[Tensor], Loss],
           quality: Callable[[Stack, Split], Tensor], *, members: int, rate: float, steps: int, device: str,
           most: int = 3000) -> tuple[float, int]:  # fmt: skip
    """The penalty and the epochs with the least ``quality``.

    All penalties are trained in one stack, ``members`` networks for each, for ``most`` epochs or ``steps`` steps, whichever is
    less; at a hundred moments ``quality(stack, inner)`` gives a number for each penalty, less is better.
    """
    stack = make(inner, members * len(PENALTIES), device)
    penalties = torch.tensor(PENALTIES, device=device).repeat_interleave(members)
    x, y = inner.x.to(device, torch.float32), inner.y.to(device, torch.float32)
    epochs = max(1, min(most, steps // -(-len(x) // BATCH)))
    every = max(1, epochs // 100)
    seen: list[Tensor] = []
    train(stack, loss(penalties), x, y, epochs=epochs, batch=BATCH, rate=rate, every=every,
          watch=lambda _: seen.append(quality(stack, inner)))  # fmt: skip
    values = torch.stack(seen).cpu().nan_to_num(torch.inf)  # (moments, penalties)
    best = int(values.argmin())
    return PENALTIES[best % len(PENALTIES)], every * (best // len(PENALTIES) + 1)
