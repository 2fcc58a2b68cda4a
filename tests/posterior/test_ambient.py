"""The caller's autocast, inference mode and no_grad change no answer; a call from inside a network's call is refused."""

import contextlib
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import ntkgp
from ntkgp._system.errors import ReentryError
from ntkgp.posterior.method import Method
from tests.support import oracle
from tests.support.oracle import error

X = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
Y = X[:, 0].sin()
AMBIENT: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast float16": partial(torch.autocast, "cpu", dtype=torch.float16),
    "autocast bfloat16": partial(torch.autocast, "cpu", dtype=torch.bfloat16),
}
METHODS: dict[str, Callable[[], Method]] = {
    "exact": ntkgp.Exact,
    "low rank": partial(ntkgp.LowRank, rank=5, draws=2),
    "trained": partial(ntkgp.TrainedNetworks, rank=2, trainer=ntkgp.AcceleratedGD(tol=1e-3)),
}
each_ambient = pytest.mark.parametrize("ambient", AMBIENT.values(), ids=AMBIENT.keys())
each_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())


class Plain(nn.Module):
    """A layer with a rule, and a weight without one: both paths of the derivatives."""

    def __init__(self):
        super().__init__()
        self.a, self.w = nn.Linear(2, 8), nn.Parameter(torch.randn(8, 1) / 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.a(x)) @ self.w


def plain() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Plain()


def everything(method: Method, net: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """The answers of all verbs."""
    g = torch.Generator().manual_seed(0)
    posterior = ntkgp.fit(net, x, y, noise_var=0.1, method=method, generator=g)
    later = posterior.update(x[:3] + 1, y[:3], generator=g)
    found = posterior.predict(x[:4])
    return [
        found.mean, found.variance, posterior.mean(x[:4]), posterior.covariance(x[:4]), later.predict(x[:4]).variance,
        posterior.sample(2, generator=g)(x[:4]), ntkgp.kernel(net, x[:4]), ntkgp.kernel_diag(net, x[:4]),
    ]  # fmt: skip


@each_ambient
@each_method
def test_answers_are_the_same_bit_for_bit(ambient: Callable[[], AbstractContextManager[object]], method: Callable):
    expected = everything(method(), plain(), X, Y)
    with ambient():
        got = everything(method(), plain(), X, Y)
    for a, b in zip(expected, got, strict=True):
        assert torch.equal(a, b)
        assert not b.is_inference()


@each_method
def test_tensors_and_modules_made_in_inference_mode(method: Callable):
    expected = everything(method(), plain(), X, Y)
    with torch.inference_mode():
        net, x, y = plain(), X.clone(), Y.clone()
    for a, b in zip(expected, everything(method(), net, x, y), strict=True):
        assert torch.equal(a, b)


def test_no_grad_stays_the_callers_choice_in_queries():
    posterior = ntkgp.fit(plain(), X, Y, noise_var=0.1)
    x = X[:2].clone().requires_grad_()
    assert posterior.predict(x).mean.requires_grad
    with torch.no_grad():
        assert not posterior.predict(x).mean.requires_grad
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


@each_ambient
def test_tuning_and_training_in_any_setting(ambient: Callable[[], AbstractContextManager[object]]):
    def answers() -> list[Tensor]:
        g = torch.Generator().manual_seed(0)
        tuned = ntkgp.tune(plain(), X, Y, steps=2, starts=1, generator=g).fit(X, Y)
        warm = ntkgp.warm_up(plain(), X, Y, steps=(3,), generator=g)
        theta = ntkgp.train_posterior_mean(plain(), X, Y, noise_var=0.1, trainer=ntkgp.AcceleratedGD(tol=0.1))
        return [tuned.mean(X[:3]), next(warm.module.parameters()).detach(), ntkgp.query_posterior_mean(theta, X[:3])]

    expected = answers()
    with ambient():
        got = answers()
    for a, b in zip(expected, got, strict=True):
        assert torch.equal(a, b)


class AutocastInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = plain()

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.net(x).float()


def test_autocast_inside_of_the_module_is_right_in_float64_and_refused_in_float32():
    truth = oracle.pose(plain().double(), X, Y, X[:4], 0.1, 1.0, None)
    exact, low = (ntkgp.fit(AutocastInside(), X, Y, noise_var=0.1, method=method).predict(X[:4])
                  for method in (ntkgp.Exact(), ntkgp.LowRank(rank=25)))  # fmt: skip
    variance = truth.covariance.diagonal()
    assert error(exact.variance.double(), variance) < 1e-4
    assert bool(((low.lower <= variance) & (variance <= low.upper)).all())
    with pytest.raises(ValueError, match=r"'net.a.weight' is torch.float32, but its layer computes in another dtype"):
        ntkgp.kernel(AutocastInside(), X)


class LayerTwice(nn.Sequential):
    """One layer at two places of a Sequential."""

    def __init__(self):
        layer = nn.Linear(2, 2)
        super().__init__(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(2, 1))


class Routed(nn.Module):
    """Points are routed to one of two layers: no batching rule of torch.func covers the assignment."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(2, 4), nn.Linear(2, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        left, h = x[:, 0] < 0, x.new_zeros(len(x), 4)
        h[left], h[~left] = self.a(x[left]), self.b(x[~left])
        return self.c(torch.tanh(h))


@pytest.mark.parametrize("build", [LayerTwice, Routed])
def test_networks_can_be_trained_although_torch_func_cannot_batch_them(build: Callable[[], nn.Module]):
    with torch.random.fork_rng():
        torch.manual_seed(2)
        net = build().double()
    before = [p.clone() for p in net.parameters()]
    x, y = X.double(), Y.double()
    truth = oracle.pose(net, x, y, x[:4], 0.1, 1.0, None)
    method = ntkgp.TrainedNetworks(rank=30, trainer=ntkgp.AcceleratedGD(signal=1e-4, tol=1e-4, dtype=torch.float64))
    with contextlib.suppress(ValueError):  # fewer directions than points
        method = ntkgp.TrainedNetworks(rank=min(30, sum(p.numel() for p in net.parameters())), trainer=method.trainer)
    found = ntkgp.fit(net, x, y, noise_var=0.1, method=method).predict(x[:4])
    assert error(found.mean, truth.mean) < 1e-3
    assert error(found.variance, truth.covariance.diagonal()) < 1e-2
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


class CallsBack(nn.Module):
    """Calls `back` in its forward, as a signal handler might run in the middle of it."""

    back: ClassVar[Any] = None  # a function

    def __init__(self):
        super().__init__()
        self.net = plain()

    def forward(self, x: Tensor) -> Tensor:
        if CallsBack.back is not None:
            back, CallsBack.back = CallsBack.back, None
            back()
        return self.net(x)


CALLS = 24  # of the network, at least, in a fit and a query


@pytest.fixture(autouse=True)
def nothing_calls_back():
    yield
    CallsBack.back = None


def test_a_call_inside_a_call_of_the_same_network_is_refused():
    posterior = ntkgp.fit(CallsBack(), X, Y, noise_var=0.1)
    CallsBack.back = lambda: posterior.predict(X[:2])
    with pytest.raises(ReentryError, match="was called inside a call of its own network"):
        posterior.predict(X[:2])
    assert torch.isfinite(posterior.predict(X[:2]).mean).all()


def test_a_fit_in_a_signal_handler_is_right_or_refused():
    """The handler runs in the middle of the network's call: of plain ones, and of those that torch.func transforms."""
    expected = ntkgp.fit(plain(), X, Y, noise_var=0.1).predict(X[:2]).mean
    inner: list[Tensor | RuntimeError] = []
    net = plain()

    def handler(*_: object) -> None:
        try:
            inner.append(ntkgp.fit(net, X, Y, noise_var=0.1).predict(X[:2]).mean)
        except RuntimeError as refused:
            inner.append(refused)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        for calls in range(CALLS):  # interrupts one later call of the network each time
            outer, left = CallsBack(), calls

            def back() -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    signal.raise_signal(signal.SIGUSR1)
                else:
                    CallsBack.back = back

            CallsBack.back = back
            got = ntkgp.fit(outer, X, Y, noise_var=0.1).predict(X[:2]).mean
            CallsBack.back = None
            assert torch.equal(got, expected)
    finally:
        signal.signal(signal.SIGUSR1, before)
    refused = [str(found) for found in inner if isinstance(found, RuntimeError)]
    assert all("let a signal handler only set a flag" in text for text in refused), refused
    assert len(inner) == CALLS
    assert refused
    assert len(refused) < CALLS
    assert all(torch.equal(found, expected) for found in inner if isinstance(found, Tensor))
