"""A prior mean is checked like the network: a function of each point by itself, which leaves x and the process alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ntkgp
from tests.support.cases import Case, by_name
from tests.support.helpers import METHODS, each_method, seeded
from tests.support.unchanged import unchanged

# The shape checker of these tests draws random numbers of its own; and users run without it.
pytestmark = pytest.mark.usefixtures("unchecked")

ONE, TWO = by_name("paper mlp"), by_name("two outputs")
Mean = Callable[[Tensor], Any]


def in_place(x: Tensor) -> Tensor:
    x *= 0
    return x.sum(dim=1)


def counting() -> Mean:
    calls: list[int] = []

    def mean(x: Tensor) -> Tensor:
        calls.append(len(x))
        return x[:, 0] + len(calls)

    return mean


class CountsCalls(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.get_buffer("calls").add_(1)
        return x[:, 0]


class ReplacesBuffer(CountsCalls):
    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.get_buffer("calls") + 1
        return x[:, 0]


def with_layer(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), layer, nn.Linear(4, 1)).double()


REFUSED: dict[str, tuple[Case, Callable[[], Any], list[str]]] = {
    "changes x": (ONE, lambda: in_place, ["prior_mean changes its input in place", "x = x + 1"]),
    "random": (ONE, lambda: lambda x: torch.randn(len(x)).double(), ["prior_mean is random", "two calls", "same values"]),
    "counts its calls": (ONE, counting, ["prior_mean is random", "two calls"]),
    "depends on the order": (
        ONE, lambda: lambda x: torch.arange(len(x)).double(), ["prior_mean at a point depends on the other points"]),
    "depends on the order by a little": (
        ONE, lambda: lambda x: x[:, 0] + 0.01 * x[:1, 0], ["prior_mean at a point depends on the other points"]),
    "centres the batch": (
        ONE, lambda: lambda x: (x - x.mean(dim=0)).sum(dim=1), ["prior_mean at a point depends on the other points"]),
    "depends on the size of the batch": (
        ONE, lambda: lambda x: 1e-6 * torch.full((len(x),), len(x)).double(), ["depends on the other points"]),
    "transposed outputs": (TWO, lambda: lambda x: x.T.contiguous(), ["must return a floating tensor of shape (12, 2)",
                                                                     "got one of shape (2, 12)"]),
    "outputs one after the other": (TWO, lambda: lambda x: x.flatten(), ["of shape (12, 2)", "got one of shape (24,)"]),
    "one number": (ONE, lambda: lambda x: torch.tensor(3.0), ["(12,) or (12, 1)", "got one of shape ()", "torch.full"]),
    "a float": (ONE, lambda: lambda x: 0.5, ["must return a floating tensor of shape (12,) or (12, 1)", "got float",
                                            "torch.full((len(x),), ..."]),
    "an array": (ONE, lambda: lambda x: np.zeros(len(x)), ["got ndarray", "torch.as_tensor"]),
    "a list": (ONE, lambda: lambda x: [0.0] * len(x), ["got list", "torch.as_tensor"]),
    "nothing": (ONE, lambda: lambda x: None, ["must return a floating tensor", "got NoneType"]),
    "integers": (ONE, lambda: lambda x: x[:, 0].long(), ["got torch.int64", ".double()"]),
    "complex numbers": (ONE, lambda: lambda x: x[:, 0] + 1j, ["got torch.complex128"]),
    "sparse": (ONE, lambda: lambda x: x[:, 0].to_sparse(), ["torch.sparse_coo", "to_dense"]),
    "another device": (ONE, lambda: lambda x: x[:, 0].to("meta"), ["got one on meta", "x is on cpu", ".to(x.device)"]),
    "NaN": (ONE, lambda: lambda x: torch.where(x[:, 0] == ONE.x[3, 0], torch.nan, 0.0),
            ["prior_mean returned NaN or infinity", "row 3 of x"]),
    "NaN beyond the checked points": (
        by_name("more points than parameters"),
        lambda: lambda x: torch.where(x[:, 0] == by_name("more points than parameters").x[30, 0], torch.nan, 0.0),
        ["prior_mean returned NaN or infinity", "row 30 of x"]),
    "a class": (ONE, lambda: nn.Tanh, ["prior_mean cannot be called on x of shape (12, 2)", "TypeError"]),
    "no argument": (ONE, lambda: lambda: 0, ["prior_mean cannot be called on x of shape (12, 2)", "TypeError"]),
    "a column that is not there": (ONE, lambda: lambda x: x[:, 5], ["cannot be called on x of shape (12, 2)", "IndexError"]),
    "no single point": (
        ONE, lambda: lambda x: x[:, 0] / x.shape[0] ** 0 if len(x) > 1 else 1 // 0,
        ["cannot be called on x of shape (1, 2)", "ZeroDivisionError"]),
    "a module in float32": (ONE, lambda: nn.Linear(2, 1), ["cannot be called on x of shape (12, 2) and dtype torch.float64",
                                                           "computes in torch.float32 on cpu", "prior_mean.to("]),
    "a module on another device": (
        ONE, lambda: nn.Linear(2, 1, device="meta", dtype=torch.float64),
        ["cannot be called", "computes in torch.float64 on meta", "prior_mean.to("]),
    "dropout": (ONE, lambda: with_layer(nn.Dropout(0.5)), ["layer '1' (Dropout) of prior_mean is in training mode", ".eval()"]),
    "batch norm": (ONE, lambda: with_layer(nn.BatchNorm1d(4)), ["layer '1' (BatchNorm1d) of prior_mean is in training mode"]),
    "a method of a module": (
        ONE, lambda: with_layer(nn.BatchNorm1d(4)).forward, ["layer '1' (BatchNorm1d) of prior_mean is in training mode"]),
    "dropout inside of a layer": (
        by_name("attention"), lambda: Attends(), ["prior_mean is random", ".eval()"]),
    "statistics of the batch": (
        ONE, lambda: with_layer(nn.BatchNorm1d(4, track_running_stats=False)).eval(),
        ["cannot be called on x of shape (1, 2)"]),
    "a buffer that is replaced": (ONE, ReplacesBuffer, ["buffer 'calls' of prior_mean changes", ".eval()"]),
    "a buffer that changes": (ONE, CountsCalls, ["buffer 'calls' of prior_mean changes", ".eval()"]),
}  # fmt: skip


class Attends(nn.Module):
    """Dropout that no layer of its own shows, on token inputs."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 1, dropout=0.5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = x.unsqueeze(2).expand(-1, -1, 4).float()
        return self.attention(h, h, h, need_weights=False)[0].sum(dim=(1, 2))


def entries(case: Case, mean: Mean) -> dict[str, Callable[[], object]]:
    module, y = case.module(), case.y
    known = {"noise_var": 0.1, "prior_mean": mean}
    return {
        "fit": lambda: ntkgp.fit(module, case.x, y, **known),
        "fit batches": lambda: ntkgp.fit(module, [(case.x, y)], method=METHODS["low rank"], **known),
        "plan_training": lambda: ntkgp.plan_training(module, case.x, y, rank=1, **known),
        "tune": lambda: ntkgp.tune(module, case.x, y, prior_mean=mean, steps=1, starts=1),
    }


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str):
    """In sentences; with x, the user's modules and torch's random state as before."""
    case, build, words = REFUSED[what]
    mean, before = build(), case.x.clone()
    modules = [mean] if isinstance(mean, nn.Sequential | Attends) else []
    for name, entry in entries(case, mean).items():
        with unchanged(*modules), pytest.raises(ValueError, match=r"prior_mean") as caught:
            entry()
        assert [word for word in words if word not in str(caught.value)] == [], f"{name}: {caught.value}"
        assert torch.equal(case.x, before), name
    if isinstance(mean, CountsCalls):
        assert mean.get_buffer("calls") == 0


@pytest.mark.parametrize("what", ["changes x", "random", "depends on the order", "dropout", "an array"])
def test_load_checks_it_too(what: str, path: Path):
    case, build, words = REFUSED[what]
    ntkgp.fit(case.module(), case.x, case.y, noise_var=0.1, prior_mean=lambda x: x[:, 0]).save(path)
    with pytest.raises(ValueError, match="cannot load") as caught:
        ntkgp.load(path, case.module(), prior_mean=build())
    assert [word for word in words if word not in str(caught.value)] == []


ANSWERED: dict[str, tuple[Case, Mean]] = {
    "a vector": (ONE, lambda x: x[:, 0]),
    "a column": (ONE, lambda x: x[:, :1]),
    "a constant": (ONE, lambda x: torch.full((len(x),), 3.0)),
    "in float32": (ONE, lambda x: x[:, 0].float()),
    "in bfloat16": (ONE, lambda x: x[:, 0].bfloat16()),
    "squeezed": (TWO, lambda x: x.squeeze()),
    "a view of its input": (TWO, lambda x: x),
    "one that needs gradients": (ONE, lambda x: (nn.Parameter(torch.ones(2).double()) * x).sum(dim=1)),
    "dropout of nothing": (ONE, with_layer(nn.Dropout(0.0))),
    "dropout in eval mode": (ONE, with_layer(nn.Dropout(0.5)).eval()),
    "its derivative": (ONE, lambda x: derivative(x)),
}


def derivative(x: Tensor) -> Tensor:
    """A prior mean that differentiates inside, whatever the mode outside."""
    with torch.enable_grad():
        leaf = x if x.requires_grad else x.requires_grad_()
        return torch.autograd.grad(leaf.sin().sum(), leaf, create_graph=True)[0].sum(dim=1)


@pytest.mark.parametrize("what", ANSWERED)
def test_answered(what: str):
    case, mean = ANSWERED[what]
    with unchanged():
        posterior = ntkgp.fit(case.module(), case.x, case.y, noise_var=0.1, prior_mean=mean)
        found = posterior.predict(case.query).mean
    with torch.no_grad():
        here, there = (mean(x).detach().double().reshape(len(x), -1) for x in (case.x.clone(), case.query.clone()))
    shifted = ntkgp.fit(case.module(), case.x, case.y - here.view_as(case.y), noise_var=0.1)
    assert not found.requires_grad
    torch.testing.assert_close(found, shifted.predict(case.query).mean + there.view_as(found), rtol=0, atol=1e-12)


def test_a_few_points_are_checked_once():
    """The check costs four calls on at most sixteen points, however many points there are; an update checks nothing."""
    case, sizes = by_name("more points than parameters"), []

    def mean(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return x[:, 0]

    posterior = ntkgp.fit(case.module(), case.x, case.y, noise_var=0.1, prior_mean=mean)
    assert sizes == [16, 16, 16, 1, 40]
    sizes.clear()
    posterior.update(case.x[:3], case.y[:3]).predict(case.query)
    assert sizes == [3, 9]


def switched(switch: list[bool]) -> Mean:
    """A prior mean that begins to overwrite its input when it is switched on, after the check."""

    def mean(x: Tensor) -> Tensor:
        value = x.detach().square().sum(dim=1)
        if switch[0]:
            x.data.zero_()
        return value

    return mean


@each_method
def test_no_call_hands_out_the_users_tensors(method: str, path: Path):
    """The check sees few points once; later calls may do anything, but not to the user's data."""
    case, switch = ONE, [False]
    mean = switched(switch)
    fit: Any = {"noise_var": 0.1, "method": METHODS[method], "prior_mean": mean}
    posterior = ntkgp.fit(case.module(), case.x, case.y, generator=seeded(), **fit)
    posterior.save(path)
    query, more, targets = case.query.clone(), case.query[:2] + 1, case.y[:2].clone()
    expected, new = posterior.predict(query), posterior.update(more, targets, generator=seeded()).predict(query)
    drawn = posterior.sample(2, generator=seeded())
    values = drawn(query)
    switch[0] = True
    got = posterior.predict(query)
    assert torch.equal(got.mean, expected.mean)
    assert torch.equal(got.variance, expected.variance)
    assert torch.equal(posterior.update(more, targets, generator=seeded()).predict(query).mean, new.mean)
    assert torch.equal(drawn(query), values)
    posterior.mean(query)
    posterior.sample(2, generator=seeded())(query)
    switch[0] = False
    loaded = ntkgp.load(path, case.module(), prior_mean=mean)
    switch[0] = True
    assert torch.equal(loaded.predict(query).mean, expected.mean)
    assert torch.equal(query, case.query)
    assert torch.equal(more, case.query[:2] + 1)


@pytest.mark.parametrize("batched", [False, True])
def test_fit_hands_out_copies(batched: bool):
    """An x of more points than are checked, and a prior mean that overwrites it when it sees them all."""
    case = by_name("more points than parameters")

    def mean(x: Tensor) -> Tensor:
        value = x[:, 0].clone()
        if len(x) > 16:
            x.zero_()
        return value

    x = case.x.clone()
    data = [(x, case.y)] if batched else x
    posterior = ntkgp.fit(
        case.module(), data, None if batched else case.y, noise_var=0.1, prior_mean=mean, method=METHODS["low rank"],
        generator=seeded(),
    )  # fmt: skip
    assert torch.equal(x, case.x)
    assert torch.equal(posterior.problem.data.x, case.x)


def test_it_is_differentiable_in_x():
    case = TWO
    posterior = ntkgp.fit(case.module(), case.x, case.y, noise_var=0.1, prior_mean=lambda x: x.sin())
    assert torch.autograd.gradcheck(lambda x: posterior.predict(x).mean, case.query[:2].clone().requires_grad_())
