"""Options that a method, a draw or a tool cannot be asked for: an error that names the option."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import ntkgp
from ntkgp.diagnostics import evaluate
from tests.reliability.bad_input.entries import EXACT
from tests.reliability.bad_input.given import NAN, QUERY, X, Y, net
from tests.support.helpers import seeded
from tests.support.long_form import recorded
from tests.support.unchanged import unchanged

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture(autouse=True, scope="module")
def _recorded(request: pytest.FixtureRequest) -> Iterator[None]:
    with recorded("bad_options", request, lambda: {"options": len(OPTIONS)}):
        yield


OPTIONS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "rank above the points": (lambda: fitted(ntkgp.LowRank(rank=7)), ["rank must be at most", "min(6, 16)", "got 7"]),
    "rank above the points, trained": (lambda: fitted(ntkgp.TrainedNetworks(rank=7)), ["rank must be at most", "got 7"]),
    "rank 0": (lambda: ntkgp.LowRank(rank=0), ["rank must be at least 1", "got 0"]),
    "rank 0, trained": (lambda: fitted(ntkgp.TrainedNetworks(rank=0)), ["rank must be at least 1"]),
    "rank of 2.5": (lambda: ntkgp.LowRank(rank=2.5), ["rank must be a whole number"]),  # pyright: ignore
    "rank of True": (lambda: ntkgp.LowRank(rank=True), ["rank must be a whole number"]),
    "draws and rtol": (lambda: ntkgp.LowRank(draws=2, rtol=0.1), ["either draws or an rtol", "draws=2", "rtol=0.1"]),
    "rtol 0": (lambda: ntkgp.LowRank(rtol=0.0), ["rtol", "positive"]),
    "rtol NaN": (lambda: ntkgp.LowRank(rtol=NAN), ["rtol", "positive"]),
    "rtol as text": (lambda: ntkgp.LowRank(rtol="small"), ["rtol", "number"]),  # pyright: ignore
    "draws -1": (lambda: ntkgp.LowRank(rank=2, draws=-1), ["draws must be at least 0"]),
    "confidence of 99.9": (lambda: ntkgp.LowRank(rank=2, confidence=99.9), ["confidence must lie between 0 and 1", "0.999"]),
    "confidence of 1": (lambda: ntkgp.LowRank(rank=2, confidence=1), ["confidence must lie between 0 and 1"]),
    "confidence, trained": (lambda: ntkgp.posterior.DrawnCovariance(0.0), ["confidence must lie between 0 and 1"]),
    "side of Exact": (lambda: ntkgp.Exact("both"), ["side must be None, 'kernel' or 'weights'", "'both'"]),
    "no more draws": (
        lambda: fitted(ntkgp.LowRank(rank=2, draws=0)).more_draws(0),  # pyright: ignore[reportAttributeAccessIssue]
        ["count must be at least 1"],
    ),
    "sharpen to nothing": (lambda: fitted(ntkgp.LowRank(rank=2, draws=0)).sharpen(X, rtol=0.0), ["rtol", "positive"]),
    "solver tolerance 0": (lambda: ntkgp.CGLS(tol=0.0), ["tol of CGLS", "positive"]),
    "solver without steps": (lambda: ntkgp.CGLS(max_iterations=0), ["max_iterations must be at least 1"]),
    "power iteration without steps": (lambda: ntkgp.linalg.PowerIteration(max_iterations=0), ["max_iterations"]),
    "power iteration, tolerance": (lambda: ntkgp.linalg.PowerIteration(tol=-1.0), ["tol of PowerIteration"]),
    "negative oversampling": (lambda: ntkgp.linalg.RandomizedSVD(oversample=-1), ["oversample must be at least 0"]),
    "negative power": (lambda: ntkgp.linalg.RandomizedSVD(power=-1), ["power must be at least 0"]),
    "Lanczos block 0": (lambda: ntkgp.linalg.Lanczos(block=0), ["block must be at least 1"]),
    "Lanczos basis 0": (lambda: ntkgp.linalg.Lanczos(max_basis=0), ["max_basis must be at least 1"]),
    "training without steps": (lambda: ntkgp.AcceleratedGD(max_steps=0), ["max_steps must be at least 1"]),
    "half a step": (lambda: ntkgp.AcceleratedGD(max_steps=0.5), ["max_steps must be a whole number"]),  # pyright: ignore
    "signal 0": (lambda: ntkgp.AcceleratedGD(signal=0.0), ["signal of AcceleratedGD"]),
    "learning rate -1": (lambda: ntkgp.Adam(lr=-1.0), ["lr of Adam"]),
    "no patience": (lambda: ntkgp.Adam(patience=0), ["patience must be at least 1"]),
    "no functions": (lambda: fitted(EXACT).sample(0), ["count must be at least 1"]),
    "half a function": (lambda: fitted(EXACT).sample(1.5), ["count must be a whole number"]),  # pyright: ignore
    "a seed for a generator": (lambda: fitted(EXACT).sample(1, generator=7),  # pyright: ignore
                               ["generator must be a torch.Generator"]),
    "method by name": (lambda: fitted("exact"), ["method must be Exact(...)", "'exact'"]),
    "method without parentheses": (lambda: fitted(ntkgp.LowRank), ["method must be", "parentheses"]),
    "parameters of no module": (lambda: fitted(EXACT, parameters=["head"]), ["parameters names 'head'"]),
    "parameters as text": (lambda: fitted(EXACT, parameters="0"), ["parameters must be a list"]),
    "no parameters": (lambda: fitted(EXACT, parameters=[]), ["parameters names no module"]),
    "parameters as a number": (lambda: fitted(EXACT, parameters=5), ["parameters must be a list"]),
    "level of an interval": (lambda: fitted(EXACT).predict(QUERY).interval(1.5), ["level must lie between 0 and 1"]),
    "observations of another shape": (lambda: evaluate(fitted(EXACT).predict(QUERY), Y), ["y must have the shape"]),
    "observations of NaN": (lambda: evaluate(fitted(EXACT).predict(QUERY), QUERY[:, 0] * NAN), ["y holds NaN"]),
    "tune in no steps": (lambda: ntkgp.tune(net(), X, Y, steps=0), ["steps must be at least 1"]),
    "tune from nowhere": (lambda: ntkgp.tune(net(), X, Y, starts=0), ["starts must be at least 1"]),
    "tune on no points": (lambda: ntkgp.tune(net(), X, Y, points=0), ["points must be at least 1"]),
    "tune no module": (lambda: ntkgp.tune([], X, Y), ["module must be"]),
    "tune an unknown prior": (lambda: ntkgp.tune(net(), X, Y, prior_var="weights"), ["prior_var must be 'layers'"]),
    "tune parts of the network": (lambda: ntkgp.tune(net(), X, Y, prior_var=[["0"]]), ["prior_var must name every parameter"]),
    "warm up by no steps": (lambda: ntkgp.warm_up(net(), X, Y, steps=()), ["steps must hold at least one"]),
    "warm up by -1 steps": (lambda: ntkgp.warm_up(net(), X, Y, steps=(-1,)), ["steps must be at least 0"]),
    "warm up on too much": (lambda: ntkgp.warm_up(net(), X, Y, share=2.0), ["share must be at most 1"]),
    "warm up in empty batches": (lambda: ntkgp.warm_up(net(), X, Y, steps=(3,), batch_size=0),
                                 ["batch_size must be at least 1"]),
    "warm up with a negative decay": (lambda: ntkgp.warm_up(net(), X, Y, steps=(3,), weight_decay=-1.0), ["weight_decay"]),
    "a table of width 0": (lambda: ntkgp.tune_table(X, Y, width=0), ["width must be at least 1"]),
    "a network of width 0": (lambda: ntkgp.mlp(2, width=0), ["must be at least 1"]),
    "singular vectors of rank 9": (lambda: ntkgp.partial_svd(net(), X, 9), ["rank must be at most"]),
    "too few trained networks": (lambda: ntkgp.plan_training(net(), X, Y, noise_var=0.1, rank=1).posterior([net()]),
                                 ["expected 2"]),
    "networks of another kind": (lambda: ntkgp.plan_training(net(), X, Y, noise_var=0.1, rank=1).posterior([net(2)] * 2),
                                 ["not a copy"]),
    "an anchor of another kind": (lambda: ntkgp.anchor_penalty(net(2), net()), ["not a copy of anchor"]),
    "update by noise of another shape": (lambda: fitted(EXACT).update(X, Y, noise_var=torch.ones(2)), ["noise_var", "(6,)"]),
    "update without noise": (lambda: fitted(EXACT, noise_var=torch.ones(6)).update(X, Y), ["noise_var is missing"]),
    "select too many": (lambda: ntkgp.select(fitted(EXACT), QUERY, 4), ["count must be at most 3"]),
    "load what is not there": (lambda: ntkgp.load("nowhere.safetensors", net()), ["there is no file"]),
    "load without a module": (lambda: ntkgp.load("nowhere.safetensors", None), ["module must be"]),  # pyright: ignore
    "save nowhere": (lambda: fitted(EXACT).save("nowhere/p.safetensors"), ["there is no folder"]),
}  # fmt: skip


def fitted(method: Any, **options: Any) -> ntkgp.posterior.Posterior:
    return ntkgp.fit(net(), X, Y, **{"noise_var": 0.1, "method": method, "generator": seeded(), **options})


@pytest.mark.parametrize("what", OPTIONS)
def test_bad_options(what: str):
    act, words = OPTIONS[what]
    with unchanged(), pytest.raises((ValueError, TypeError, FileNotFoundError)) as error:
        act()
    assert [word for word in words if word not in str(error.value)] == [], str(error.value)
