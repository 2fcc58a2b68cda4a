"""Bad input: the right exception, a message that names the culprit and says what to do, and nothing changed."""

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ntkgp
from tests.support.unchanged import unchanged

# Users run without the shape checker of these tests: it must be the library itself that objects.
pytestmark = pytest.mark.usefixtures("unchecked")

X, Y = torch.linspace(-1, 1, 12).view(6, 2), torch.linspace(0, 1, 6)
NAN, INF = torch.nan, torch.inf


def net(out_features: int = 1) -> nn.Module:
    return ntkgp.mlp(2, out_features, width=8, generator=torch.Generator().manual_seed(0))


def with_value(t: Tensor, value: float) -> Tensor:
    t = t.clone()
    t.view(-1)[5] = value
    return t


class Returns(nn.Module):
    """Returns what a function makes of a linear layer's output."""

    def __init__(self, make: Callable[[Tensor], Any]):
        super().__init__()
        self.layer, self.make = nn.Linear(2, 4), make

    def forward(self, x: Tensor) -> Any:
        return self.make(self.layer(x))


class Attends(nn.Module):
    """Dropout hidden in another layer."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(2, 1, dropout=0.5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0].mean(dim=(1, 2))


class Counts(nn.Module):
    """Has a buffer that counts calls."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.get_buffer("calls").add_(1)
        return self.layer(x)


class Holds(nn.Module):
    """Holds something that cannot be copied."""

    def __init__(self, thing: object):
        super().__init__()
        self.inner = nn.Sequential(net())
        self.inner.thing = thing  # pyright: ignore[reportArgumentType]

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Recomputes(nn.Module):
    """Does not keep the output of its layer for the backward pass, but computes it again there."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(2, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(lambda t: torch.tanh(self.layer(t)), x, use_reentrant=False))


def scripted() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.trace(nn.Linear(2, 1), X)


def mixed_dtypes() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1).double())


def spoiled() -> nn.Module:
    module = net()
    with torch.no_grad():
        next(module.parameters()).view(-1)[0] = NAN
    return module


def exploding() -> nn.Module:
    return Returns(lambda out: out / 0.0)


@dataclass(frozen=True)
class Bad:
    """What is wrong, what is raised, and words its message must hold."""

    what: str
    raises: type[Exception]
    words: list[str]
    module: Callable[[], Any] = net
    x: Any = None
    y: Any = None
    noise_var: Any = 0.1
    method: Callable[[], Any] = lambda: None
    prior_var: Any = 1.0
    prior_mean: Any = None


def rank(value: Any, tail: int = 0) -> Callable[[], ntkgp.TrainedNetworks]:
    return lambda: ntkgp.TrainedNetworks(rank=value, tail=tail)


CASES = [
    Bad("fewer targets than points", ValueError, ["y must have shape (6,)", "(5,)"], y=Y[:5]),
    Bad("too many columns", ValueError, ["1 output(s)", "y has shape (6, 2)"], y=torch.zeros(6, 2)),
    Bad("too few columns", ValueError, ["2 output(s)", "y has shape (6,)", "(6, 2)"], module=lambda: net(2)),
    Bad("targets with three axes", ValueError, ["y must have shape", "(6, 1, 1)"], y=torch.zeros(6, 1, 1)),
    Bad("NaN in x", ValueError, ["x holds NaN or infinity in row 2", "impute"], x=with_value(X, NAN)),
    Bad("infinity in x", ValueError, ["x holds NaN or infinity in row 2"], x=with_value(X, INF)),
    Bad("NaN in y", ValueError, ["y holds NaN or infinity in row 5", "impute"], y=with_value(Y, NAN)),
    Bad("infinity in y", ValueError, ["y holds NaN or infinity in row 5"], y=with_value(Y, -INF)),
    Bad("no points", ValueError, ["x must hold at least one point", "(0, 2)"], x=X[:0], y=Y[:0]),
    Bad("a point without an axis", ValueError, ["x must hold at least one point"], x=torch.tensor(1.0)),
    Bad("points of another width", ValueError, ["cannot be called on x of shape (6, 3)"], x=torch.zeros(6, 3)),
    Bad("x is a list", TypeError, ["x must be a torch.Tensor", "list", "torch.as_tensor(x)"], x=X.tolist()),
    Bad("y is a list", TypeError, ["y must be a torch.Tensor", "list", "torch.as_tensor(y)"], y=Y.tolist()),
    Bad("integer x", TypeError, ["x must be real floating point", "torch.int64", "x.float()"], x=X.long()),
    Bad("boolean x", TypeError, ["x must be real floating point", "torch.bool"], x=X > 0),
    Bad("complex x", TypeError, ["x must be real floating point", "complex"], x=X.to(torch.complex64)),
    Bad("integer y", TypeError, ["y must be real floating point", "torch.int64", "y.float()"], y=Y.long()),
    Bad("no noise", ValueError, ["noise_var must be positive and finite", "got 0"], noise_var=0.0),
    Bad("negative noise", ValueError, ["noise_var must be positive", "-0.1"], noise_var=-0.1),
    Bad("one negative noise", ValueError, ["noise_var must be positive"], noise_var=with_value(torch.ones(6), -1.0)),
    Bad("NaN noise", ValueError, ["noise_var must be positive and finite"], noise_var=NAN),
    Bad("infinite noise", ValueError, ["noise_var must be positive and finite"], noise_var=torch.full((6,), INF)),
    Bad("too few noises", ValueError, ["noise_var must", "shape (6,), (6, 1) or (1, 1)", "(5,)"], noise_var=torch.ones(5)),
    Bad("noise per output of another width", ValueError, ["noise_var", "(6, 1)", "(6, 2)"], noise_var=torch.ones(6, 2)),
    Bad("noise as text", TypeError, ["noise_var must be a number or a torch.Tensor", "str"], noise_var="small"),
    Bad("noise as truth", TypeError, ["noise_var must be a number", "bool"], noise_var=True),
    Bad("complex noise", TypeError, ["noise_var must be real", "complex"], noise_var=torch.ones(6, dtype=torch.complex64)),
    Bad("rank 0", ValueError, ["rank must be at least 1", "got 0"], method=rank(0)),
    Bad("negative rank", ValueError, ["rank must be at least 1", "got -3"], method=rank(-3)),
    Bad("rank above N·C", ValueError, ["rank must be at most min(N·C, P)", "min(6, 104)", "got 7"], method=rank(7)),
    Bad("rank above P", ValueError, ["min(6, 3)", "got 4"], module=lambda: nn.Linear(2, 1), method=rank(4)),
    Bad("a fractional rank", TypeError, ["rank must be a whole number", "2.5"], method=rank(2.5)),
    Bad("a negative tail", ValueError, ["tail must be at least 0", "-1"], method=rank(2, -1)),
    Bad("a method's class", TypeError, ["method must be Exact(...)", "parentheses"], method=lambda: ntkgp.Exact),
    Bad("a method's name", TypeError, ["method must be Exact(...)", "'exact'"], method=lambda: "exact"),
    Bad("zero prior variance", ValueError, ["prior_var must be positive and finite", "got 0"], prior_var=0.0),
    Bad("NaN prior variance", ValueError, ["prior_var must be positive"], prior_var=NAN),
    Bad("a layer without prior variance", ValueError, ["prior_var names no module", "'2.weight'"], prior_var={"0": 1.0}),
    Bad("prior variance of no layer", ValueError, ["prior_var names 'head'", "owns no"], prior_var={"": 1.0, "head": 2.0}),
    Bad("negative layer variance", ValueError, ["prior_var['0'] must be positive"], prior_var={"": 1.0, "0": -1.0}),
    Bad("prior mean of a wrong shape", ValueError, ["prior_mean must", "(6, 1)", "(3,)"], prior_mean=lambda x: torch.ones(3)),
    Bad("prior mean of NaN", ValueError, ["prior_mean returned NaN"], prior_mean=lambda x: x[:, 0] * NAN),
    Bad("prior mean of integers", ValueError, ["prior_mean must return a floating"], prior_mean=lambda x: x[:, 0].long()),
    Bad("prior mean as a number", TypeError, ["prior_mean must be None, network_mean or a function"], prior_mean=0.5),
    Bad("not a module", TypeError, ["module must be a torch.nn.Module", "function"], module=lambda: torch.sin),
    Bad("nothing to train", ValueError, ["module has no trainable parameters", "requires_grad"], module=nn.Tanh),
    Bad("all frozen", ValueError, ["module has no trainable parameters", "frozen"], module=lambda: net().requires_grad_(False)),
    Bad("lazy parameters", ValueError, ["'weight' is not initialised", "call the module"], module=lambda: nn.LazyLinear(1)),
    Bad("parameters of two dtypes", ValueError, ["must share one dtype", "float32", "float64"], module=mixed_dtypes),
    Bad("NaN weights", ValueError, ["'0.weight' holds NaN"], module=spoiled),
    Bad("complex weights", TypeError, ["must be real floating point"], module=lambda: nn.Linear(2, 1, dtype=torch.complex64)),
    Bad("DataParallel", TypeError, ["the network itself, got DataParallel", "module.module"],
        module=lambda: nn.DataParallel(net())),
    Bad("TorchScript", TypeError, ["got TorchScript", "from which it was made"], module=scripted),
    Bad("a lock", ValueError, ["copy.deepcopy", "'inner.thing'", "__deepcopy__"], module=lambda: Holds(threading.Lock())),
    Bad("a generator", ValueError, ["copy.deepcopy", "'inner.thing'"], module=lambda: Holds(n for n in range(3))),
    Bad("no outputs", ValueError, ["at least one output per point", "(6, 0)"], module=lambda: Returns(lambda out: out[:, :0]),
        y=torch.zeros(6, 0)),
    Bad("checkpointing", ValueError, ["must be differentiable", "torch.utils.checkpoint"], module=Recomputes),
    Bad("the place in the batch", ValueError, ["depends on the other points"],
        module=lambda: Returns(lambda out: out[:, :1] + torch.arange(len(out)).unsqueeze(1))),
    Bad("three axes out", ValueError, ["must return shape (N,) or (N, C)", "(6, 4, 1)"],
        module=lambda: Returns(lambda out: out[..., None])),
    Bad("no axis out", ValueError, ["must return shape (N,) or (N, C)", "()"], module=lambda: Returns(torch.sum)),
    Bad("outputs not per point", ValueError, ["must return shape", "(24,)"], module=lambda: Returns(torch.flatten)),
    Bad("two tensors out", TypeError, ["must return one tensor", "tuple"], module=lambda: Returns(lambda o: (o, o))),
    Bad("integers out", TypeError, ["must return real floating point", "torch.int64"], module=lambda: Returns(Tensor.long)),
    Bad("infinity out", ValueError, ["module returns NaN or infinity"], module=exploding, y=torch.zeros(6, 4)),
    Bad("dropout in train mode", ValueError, ["'1' (Dropout) is in training mode", "module.eval()"],
        module=lambda: nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1))),
    Bad("batch-norm in train mode", ValueError, ["'1' (BatchNorm1d) is in training mode", "module.eval()"],
        module=lambda: nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))),
    Bad("noise of its own", ValueError, ["the module is stochastic"],
        module=lambda: Returns(lambda out: (out + torch.rand(()))[:, :1])),
    Bad("dropout inside attention", ValueError, ["the module is stochastic", "module.eval()"],
        module=Attends, x=X.view(2, 3, 2), y=torch.zeros(2)),
    Bad("statistics of the batch", ValueError, ["depends on the other points of the batch", "module.eval()"],
        module=lambda: nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 1)).eval()),
    Bad("a buffer that changes", ValueError, ["buffer 'calls' changes", "eval()"], module=Counts),
]  # fmt: skip


@pytest.mark.parametrize("bad", CASES, ids=lambda bad: bad.what)
def test_fit_refuses(bad: Bad):
    module = bad.module()
    x, y = (default if given is None else given for given, default in ((bad.x, X), (bad.y, Y)))
    with unchanged(*[m for m in [module] if isinstance(m, nn.Module) and not isinstance(m, nn.LazyLinear)]):  # noqa: SIM117
        with pytest.raises(bad.raises) as caught:
            ntkgp.fit(
                module, x, y, noise_var=bad.noise_var, method=bad.method(), prior_mean=bad.prior_mean, prior_var=bad.prior_var
            )
    assert [word for word in bad.words if word not in str(caught.value)] == []


def test_numbers_of_numpy_are_numbers():
    """float32 and whole ones, which are no Python numbers."""
    module = nn.Linear(2, 1)
    plain = ntkgp.fit(module, X, Y, noise_var=2.0, prior_var={"": 3.0}).predict(X)
    two, three, tenth = np.float32(2), np.int64(3), np.float32(0.1)
    given = ntkgp.fit(module, X, Y, noise_var=two, prior_var={"": three}).predict(X)  # pyright: ignore[reportArgumentType]
    assert torch.equal(given.variance, plain.variance)
    assert ntkgp.LowRank(rtol=tenth).rtol == tenth  # pyright: ignore[reportArgumentType]
