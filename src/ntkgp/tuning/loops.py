"""Ordinary training of copies of a network, for features: by AdamW, or by the user's loop."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from ntkgp._system.progress import Bar
from ntkgp.networks.sums import SumOfNetworks

TrainingLoop = Callable[[nn.Module, Tensor, Tensor, int], None]


@dataclass(frozen=True)
class TrainingData:
    """Points, standardised targets, and the indices of the points that each copy is trained on."""

    x: Tensor
    y: Tensor
    parts: list[Tensor]


class TrainingCopies(ABC):
    """Copies in training, some steps at a time, each on a separate part of the data."""

    def __init__(self, modules: list[nn.Module], data: TrainingData):
        self.copies = [copy.deepcopy(module) for module in modules]
        self.data = data

    @abstractmethod
    def advance(self, steps: int, bar: Bar) -> None:
        """Train for `steps` more steps."""

    def result(self) -> nn.Module:
        """Return a copy of the current state, in the mode (training or evaluation) of the user's module."""
        copies = [copy.deepcopy(one) for one in self.copies]
        if len(copies) == 1:
            return copies[0]
        total = SumOfNetworks(*copies)
        total.training = total.networks.training = copies[0].training  # not .train(), which would change parts of the copies
        return total


class OwnLoop(TrainingCopies):
    """The user's training loop, called for each copy."""

    def __init__(self, modules: list[nn.Module], data: TrainingData, train: TrainingLoop):
        super().__init__(modules, data)
        self.train = train

    def advance(self, steps: int, bar: Bar) -> None:
        """Train for `steps` more steps."""
        for one, part in zip(self.copies, self.data.parts, strict=True):
            if steps:
                self.train(one, self.data.x[part], self.data.y[part], steps)
        bar.update(steps)


@dataclass(frozen=True)
class AdamWOptions:
    """Options of AdamW on minibatches."""

    lr: float
    weight_decay: float
    batch_size: int


class AdamWLoop(TrainingCopies):
    """AdamW on the mean squared error; copies of one architecture form one stack, so M copies cost little more than one."""

    def __init__(self, modules: list[nn.Module], data: TrainingData, options: AdamWOptions, generator: torch.Generator | None):
        super().__init__(modules, data)
        self.batch, self.generator = min(options.batch_size, len(data.parts[0])), generator
        # Stack only copies without buffers and dropout: a stack would share changing buffers and random numbers.
        plain = all(not any(True for _ in one.buffers()) and not any(isinstance(p, nn.Dropout) for p in one.modules())
                    for one in self.copies)  # fmt: skip
        same = len({tuple((n, p.shape) for n, p in one.named_parameters()) for one in self.copies}) == 1
        self.stacked: dict[str, Tensor] | None = None
        if len(modules) > 1 and plain and same:
            self.stacked = stack_module_state(self.copies)[0]  # pyright: ignore[reportArgumentType]
        tensors = list(self.stacked.values()) if self.stacked else [p for one in self.copies for p in one.parameters()]
        self.optimiser = torch.optim.AdamW(
            [t for t in tensors if t.requires_grad], lr=options.lr, weight_decay=options.weight_decay
        )

    def advance(self, steps: int, bar: Bar) -> None:
        """Train for `steps` more steps."""
        modes = [[part.training for part in one.modules()] for one in self.copies]
        for one in self.copies:
            one.train()
        for _ in range(steps):
            rows = torch.stack([part[self._draw(len(part)).to(part.device)] for part in self.data.parts])
            self.optimiser.zero_grad()
            loss = self._loss(self.data.x[rows], self.data.y[rows])
            if not math.isfinite(float(loss.detach())):
                raise ValueError("training diverged; lower lr, or scale x to a standard deviation near 1")
            loss.backward()
            self.optimiser.step()
            bar.update()
        for one, mode in zip(self.copies, modes, strict=True):
            for part, training in zip(one.modules(), mode, strict=True):
                part.training = training

    def _draw(self, count: int) -> Tensor:
        device = "cpu" if self.generator is None else self.generator.device
        return torch.randint(count, (self.batch,), generator=self.generator, device=device)

    def _loss(self, x: Tensor, y: Tensor) -> Tensor:
        if self.stacked is None:
            pairs = zip(self.copies, x, y, strict=True)
            return torch.stack([(one(a).reshape(b.shape) - b).square().mean() for one, a, b in pairs]).sum()
        out = vmap(lambda params, a: functional_call(self.copies[0], params, (a,)))(self.stacked, x)
        return (out.reshape(y.shape) - y).square().flatten(1).mean(dim=1).sum()

    def result(self) -> nn.Module:
        """Return a copy of the current state, in the mode (training or evaluation) of the user's module."""
        if self.stacked is not None:
            for k, one in enumerate(self.copies):
                with torch.no_grad():
                    for name, p in one.named_parameters():
                        p.copy_(self.stacked[name][k])
        return super().result()
