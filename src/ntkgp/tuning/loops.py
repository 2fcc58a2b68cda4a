"""Copies of a network in ordinary training, for features: AdamW, or a loop of the user's."""

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
class Lessons:
    """What the copies learn from: points, standardised targets, and the places of the points that each copy sees."""

    x: Tensor
    y: Tensor
    parts: list[Tensor]


class TrainingCopies(ABC):
    """Copies being trained, some steps at a time; each sees its own part of the data."""

    def __init__(self, modules: list[nn.Module], lessons: Lessons):
        self.copies = [copy.deepcopy(module) for module in modules]
        self.lessons = lessons

    @abstractmethod
    def advance(self, steps: int, bar: Bar) -> None:
        """Train for some more steps."""

    def result(self) -> nn.Module:
        """A copy as trained so far, in the mode the module came in."""
        copies = [copy.deepcopy(one) for one in self.copies]
        return copies[0] if len(copies) == 1 else SumOfNetworks(*copies).train(copies[0].training)


class OwnLoop(TrainingCopies):
    """A training loop of the user's, called for each copy."""

    def __init__(self, modules: list[nn.Module], lessons: Lessons, train: TrainingLoop):
        super().__init__(modules, lessons)
        self.train = train

    def advance(self, steps: int, bar: Bar) -> None:
        """Train for some more steps."""
        for one, part in zip(self.copies, self.lessons.parts, strict=True):
            if steps:
                self.train(one, self.lessons.x[part], self.lessons.y[part], steps)
        bar.update(steps)


@dataclass(frozen=True)
class AdamWOptions:
    """Of AdamW on minibatches."""

    lr: float
    weight_decay: float
    batch_size: int


class AdamWLoop(TrainingCopies):
    """AdamW on the mean squared error; copies of one architecture as one stack, so that M of them cost little more than one."""

    def __init__(self, modules: list[nn.Module], lessons: Lessons, options: AdamWOptions, generator: torch.Generator | None):
        super().__init__(modules, lessons)
        self.batch, self.generator = min(options.batch_size, len(lessons.parts[0])), generator
        # Buffers that training changes, or random layers, would be mixed up between stacked copies.
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
        """Train for some more steps."""
        modes = [[part.training for part in one.modules()] for one in self.copies]
        for one in self.copies:
            one.train()
        for _ in range(steps):
            rows = torch.stack([part[self._draw(len(part)).to(part.device)] for part in self.lessons.parts])
            self.optimiser.zero_grad()
            loss = self._loss(self.lessons.x[rows], self.lessons.y[rows])
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
        """A copy as trained so far, in the mode the module came in."""
        if self.stacked is not None:
            for k, one in enumerate(self.copies):
                with torch.no_grad():
                    for name, p in one.named_parameters():
                        p.copy_(self.stacked[name][k])
        return super().result()
