"""Networks, tensors and batches that are wrong in one way each."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.reliability.bad_input.given import X, Y, net


class Custom(nn.Module):
    """Does with a linear layer's output whatever it is told to."""

    def __init__(self, forward: "Deed", out_features: int = 1):
        super().__init__()
        self.layer = nn.Linear(2, out_features, dtype=torch.float64)
        with torch.no_grad():
            for p in self.layer.parameters():
                p.copy_(torch.linspace(-1, 1, p.numel()).view_as(p))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.calls, self.does = 0, forward

    def forward(self, x: Tensor) -> Any:
        return self.does(self, x, self.layer(x))


Deed = Callable[[Custom, Tensor, Tensor], Any]


def counting(module: Custom, x: Tensor, out: Tensor) -> Tensor:
    module.calls += 1
    return out + module.calls


def buffered(module: Custom, x: Tensor, out: Tensor) -> Tensor:
    module.get_buffer("count").add_(1)
    return out


def overwriting(module: Custom, x: Tensor, out: Tensor) -> Tensor:
    x.add_(1)
    return out


def custom(forward: Deed, out_features: int = 1) -> Callable[[], nn.Module]:
    return lambda: Custom(forward, out_features)


SQUARES = custom(lambda m, x, out: out.square())


def same_weights(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def module() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return build().double()

    return module


def spoiled(value: float, which: int = 0) -> nn.Module:
    module = net()
    with torch.no_grad():
        list(module.parameters())[which].view(-1)[0] = value
    return module


def partly(dtype: torch.dtype) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3).double(), nn.Linear(3, 1).to(dtype))


class Lambda(nn.Module):
    """An activation that is a lambda: it can be copied, but not pickled."""

    def __init__(self):
        super().__init__()
        self.body, self.last, self.activation = nn.Linear(2, 4), nn.Linear(4, 1), lambda h: torch.sin(h)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.activation(self.body(x)))


def with_value(t: Tensor, value: float, place: int = -1) -> Tensor:
    t = t.clone()
    t.view(-1)[place] = value
    return t


class Batches:
    """Batches that may change from pass to pass."""

    def __init__(self, each_pass: Callable[[int], list[Any]]):
        self.each_pass, self.passes = each_pass, 0

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        return iter(self.each_pass(self.passes))


def shuffling() -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(X, Y), 2, shuffle=True, generator=torch.Generator().manual_seed(0))


def halves(x: Tensor = X, y: Tensor = Y) -> list[tuple[Tensor, Tensor]]:
    return [(x[:3], y[:3]), (x[3:], y[3:])]
