"""Every public entry × every kind of bad input: an error that names the culprit, or the right answer. Nothing else.

The table is data: a kind of input, what the entry must do with it (`refused` with these words, `answered`, or `warned` with
these words and answered), and the entries it applies to. Right answers are judged by tests/precise.py, in many digits. After
every case the module, torch's random state and its global settings are as before.
"""

import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import polars as pl
import precise
import pytest
import torch
from long_form import recorded
from modules import SharedWeight, Squeezed, UsedTwice, in_place
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner
from unchanged import unchanged

import ntkgp
from ntkgp import table_folder, table_model
from ntkgp.cli import app
from ntkgp.sklearn import NTKGPRegressor
from ntkgp.table_files import Column
from ntkgp.table_model import Options, fit_table

pytestmark = pytest.mark.usefixtures("unchecked")
NAN, INF = torch.nan, torch.inf
Y = torch.linspace(0.5, 3, 6, dtype=torch.float64).sin()
X = torch.linspace(-1, 1, 12, dtype=torch.float64).view(6, 2).sin()
QUERY = torch.tensor([[0.1, 0.3], [2.0, -1.0], [-1.0, -0.8]], dtype=torch.float64)


def net(out_features: int = 1, dtype: torch.dtype = torch.float64) -> nn.Module:
    return ntkgp.mlp(2, out_features, 4, 1, nn.Tanh(), generator=torch.Generator().manual_seed(0)).to(dtype)


@dataclass(frozen=True)
class Given:
    """What an entry is called with; a kind of bad input replaces some of it."""

    module: Callable[[], Any] = net
    x: Any = X
    y: Any = Y
    noise_var: Any = 0.1
    query: Any = QUERY
    prior_var: Any = 1.0
    prior_mean: Any = None
    generator: Any = field(default_factory=lambda: torch.Generator().manual_seed(0))


# ---- What an entry must do ----


@dataclass(frozen=True)
class Outcome:
    """`words` stand in the message of a ValueError or TypeError, or of a NumericalWarning."""

    kind: str
    words: tuple[str, ...] = ()


def refused(*words: str) -> Outcome:
    return Outcome("refused", words)


def warned(*words: str) -> Outcome:
    return Outcome("warned", words)


answered = Outcome("answered")


# ---- The entries ----

EXACT, LOW_RANK, FULL_RANK = ntkgp.Exact(), ntkgp.LowRank(rank=1, tail=2), ntkgp.LowRank(rtol=0.5)
TRAINED = ntkgp.TrainedNetworks(rank=1, trainer=ntkgp.AcceleratedGD(tol=0.05, max_steps=3000))
METHODS: dict[str, Any] = {"exact": EXACT, "low rank": LOW_RANK, "to a tolerance": FULL_RANK, "trained": TRAINED}


def fit_with(method: Any) -> Callable[[Given, Path], None]:
    def entry(given: Given, folder: Path) -> None:
        module = given.module()
        posterior = ntkgp.fit(
            module, given.x, given.y, noise_var=given.noise_var, method=method, prior_var=given.prior_var,
            prior_mean=given.prior_mean, generator=given.generator,
        )  # fmt: skip
        judge(posterior, truth(module, given), method, given.query, single=dtype_of(module) == torch.float32)

    return entry


def update_with(method: Any) -> Callable[[Given, Path], None]:
    """Good data first, then the given."""

    def entry(given: Given, folder: Path) -> None:
        module, first = given.module(), Given()
        y = first.y.unsqueeze(1).expand(-1, 2) if isinstance(given.y, Tensor) and given.y.shape[1:] == (2,) else first.y
        before = ntkgp.fit(
            module, first.x.to(dtype_of(module)), y.to(dtype_of(module)), noise_var=0.1, method=method,
            generator=given.generator, prior_var=given.prior_var, prior_mean=given.prior_mean,
        )  # fmt: skip
        kept = before.predict(first.query)
        after = before.update(given.x, given.y, noise_var=given.noise_var, generator=given.generator)
        assert torch.equal(before.predict(first.query).variance, kept.variance)
        noise = torch.cat([each(0.1, len(first.x)), each(given.noise_var, len(given.x))])
        both = replace(given, x=torch.cat([first.x, given.x]), y=torch.cat([y, given.y.to(y)]), noise_var=noise)
        judge(after, truth(module, both), method, single=dtype_of(module) == torch.float32)

    return entry


def asked(how: Callable[[ntkgp.Posterior, Given], Any], method: Any) -> Callable[[Given, Path], None]:
    """A posterior of good data, asked about the given query (with the given noise)."""

    def entry(given: Given, folder: Path) -> None:
        good, module = Given(), given.module()
        posterior = ntkgp.fit(module, good.x, good.y, noise_var=0.1, method=method, generator=good.generator)
        answer = how(posterior, given)
        assert bool(torch.isfinite(answer).all())
        if method is EXACT:
            judge(posterior, truth(module, replace(good, query=given.query)), method, given.query)

    return entry


def predicted(posterior: ntkgp.Posterior, given: Given) -> Tensor:
    p = posterior.predict(given.query, noise_var=given.noise_var)
    return torch.stack([p.mean, p.total_std])


def tuned(given: Given, folder: Path) -> None:
    known = given.noise_var if isinstance(given.noise_var, str | Tensor) or given.noise_var != 0.1 else "shared"
    module = given.module()
    found = ntkgp.tune(module, given.x, given.y, noise_var=known, steps=4, starts=1, generator=given.generator)
    noise = given.noise_var if found.noise_known else found.noise_var
    settings = replace(given, noise_var=noise, prior_var=found.prior_var)
    judge(found.fit(given.x, given.y), truth(found.module, settings), EXACT)
    assert np.isfinite(found.log_marginal_likelihood)


def table_tuned(given: Given, folder: Path) -> None:
    found = ntkgp.tune_table(
        given.x, given.y, width=4, local_width=4, warm_networks=0, steps=4, starts=1, generator=given.generator
    )
    settings = replace(given, noise_var=found.noise_var, prior_var=found.prior_var)
    judge(found.fit(given.x, given.y), truth(found.module, settings), EXACT)


def warmed(given: Given, folder: Path) -> None:
    module = ntkgp.warm_up(given.module(), given.x, given.y, steps=(3,), generator=given.generator)
    judge(ntkgp.fit(module, given.x, given.y, noise_var=0.1), truth(module, replace(given, noise_var=0.1)), EXACT)


def planned(given: Given, folder: Path) -> None:
    module = given.module()
    plan = ntkgp.plan_training(
        module, given.x, given.y, noise_var=given.noise_var, rank=1, prior_var=given.prior_var, prior_mean=given.prior_mean
    )
    assert bool(torch.isfinite(plan.targets).all())
    assert plan.beta > 0


def paper_mean(given: Given, folder: Path) -> None:
    module = given.module()
    trained = ntkgp.train_posterior_mean(
        module, given.x, given.y, noise_var=given.noise_var, trainer=TRAINED.trainer, generator=given.generator
    )
    expected = truth(module, given).mean
    got = ntkgp.query_posterior_mean(trained, given.query.to(dtype_of(module))).flatten()
    assert (got - expected).norm() <= 0.2 * expected.norm() + 1e-9


def kernels(given: Given, folder: Path) -> None:
    module = given.module()
    got = ntkgp.kernel(module, given.x, given.query)
    close(got, oracle.jacobian(module, given.x) @ oracle.jacobian(module, given.query).T, 1e-4)


def kernel_diagonal(given: Given, folder: Path) -> None:
    module = given.module()
    close(ntkgp.kernel_diag(module, given.x), oracle.jacobian(module, given.x).square().sum(dim=1), 1e-4)


def regressor(given: Given, folder: Path) -> None:
    """scikit-learn's estimator; what it tuned is judged in its standardised units."""
    x, y, query = (np.asarray(part) for part in (given.x, given.y, given.query))
    noise = "tuned" if given.noise_var == 0.1 else given.noise_var
    model = NTKGPRegressor(given.module(), noise_var=noise, steps=4, starts=1, random_state=0)
    mean, std = model.fit(x, y).predict(query, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert (std >= 0).all()
    settings = replace(
        given, x=model.inputs_.apply(given.x), y=model.targets_.apply(given.y), query=model.inputs_.apply(given.query),
        noise_var=model.tuned_.noise_var, prior_var=model.tuned_.prior_var,
    )  # fmt: skip
    judge(model.posterior_, truth(model.tuned_.module, settings), EXACT, settings.query)


def botorch_model(given: Given, folder: Path) -> None:
    from ntkgp.botorch import NTKGPModel

    y = given.y.unsqueeze(-1) if isinstance(given.y, Tensor) and given.y.ndim == 1 else given.y
    noise = "tuned" if given.noise_var == 0.1 else given.noise_var
    model = NTKGPModel(given.x, y, module=given.module(), noise_var=noise, steps=4, starts=1, outcome_transform=None)
    posterior = model.posterior(given.query)
    assert bool(torch.isfinite(posterior.mean).all())
    assert bool((posterior.variance >= 0).all())
    assert model.tuned is not None
    settings = replace(given, noise_var=each(model.tuned.noise_var, len(y)), prior_var=model.tuned.prior_var)
    judge(model.gp, truth(model.tuned.module, settings), EXACT)


def stored(method: Any) -> Callable[[Given, Path], None]:
    def entry(given: Given, folder: Path) -> None:
        module = given.module()
        posterior = ntkgp.fit(module, X, Y, noise_var=given.noise_var, method=method, generator=given.generator)
        posterior.save(folder / "p.safetensors")
        loaded = ntkgp.load(folder / "p.safetensors", module)
        assert torch.equal(loaded.predict(given.query).variance, posterior.predict(given.query).variance)

    return entry


ENTRIES: dict[str, Callable[[Given, Path], None]] = {
    **{f"fit {name}": fit_with(method) for name, method in METHODS.items()},
    "fit": fit_with(None),
    **{f"update {name}": update_with(METHODS[name]) for name in ("exact", "low rank", "trained")},
    **{f"predict {name}": asked(predicted, METHODS[name]) for name in ("exact", "low rank", "trained")},
    **{f"covariance {name}": asked(lambda p, given: p.covariance(given.query), METHODS[name])
       for name in ("exact", "low rank", "trained")},
    **{f"sample {name}": asked(lambda p, given: p.sample(2, generator=given.generator)(given.query), METHODS[name])
       for name in ("exact", "low rank", "trained")},
    "tune": tuned, "tune_table": table_tuned, "warm_up": warmed, "plan_training": planned, "paper's mean": paper_mean,
    "kernel": kernels, "kernel_diag": kernel_diagonal,
    "sklearn": regressor, "botorch": botorch_model,
    "save exact": stored(EXACT), "save low rank": stored(LOW_RANK), "save trained": stored(TRAINED),
}  # fmt: skip


# ---- The judge ----

LENIENT: list[bool] = []


def dtype_of(module: nn.Module) -> torch.dtype:
    return next(module.parameters()).dtype


def each(noise: Any, count: int) -> Tensor:
    return torch.as_tensor(noise, dtype=torch.float64).reshape(-1).expand(count)


def truth(module: nn.Module, given: Given) -> precise.Precise:
    if not isinstance(given.x, Tensor):  # batches
        given = replace(given, x=torch.cat([x for x, _ in given.x]), y=torch.cat([y for _, y in given.x]))
    J, Q = (oracle.jacobian(module, points, given.prior_var) for points in (given.x, given.query))
    residual = given.y.detach().double().flatten()
    outputs = len(J) // len(given.x)
    noise = each(given.noise_var, len(given.x)).repeat_interleave(outputs)
    return precise.posterior(J, Q, residual, noise)


def close(got: Tensor, expected: Tensor, rtol: float) -> None:
    got, expected = got.double(), expected.double()
    scale = expected.abs().max().clamp_min(1e-300)
    assert float(((got - expected) / scale).abs().max()) <= rtol


def judge(
    posterior: ntkgp.Posterior, expected: precise.Precise, method: Any, query: Tensor = QUERY, single: bool = False
) -> None:
    """Finite, the mean right, the exact variance inside of the bracket (to rounding), the covariance positive."""
    p = posterior.predict(query)
    parts = {"mean": p.mean, "variance": p.variance, "lower": p.lower, "upper": p.upper}
    mean, variance, lower, upper = (part.detach().double().flatten() for part in parts.values())
    assert all(bool(torch.isfinite(part).all()) for part in (mean, variance, lower, upper))
    assert bool((variance >= 0).all())
    assert bool((lower <= variance).all())
    assert bool((variance <= upper).all())
    if LENIENT:  # a warning has said how far it may be off
        return
    exact, std = expected.variance, expected.variance.sqrt()
    slack = (1e-3 if p.mean.dtype == torch.float32 or single else 1e-5) * exact + 1e-300
    assert bool((lower <= exact + slack).all())
    assert bool((upper >= exact - slack).all())
    if method is EXACT:
        assert bool(((variance - exact).abs() <= slack).all())
    # In posterior standard deviations: trained copies promise 5 % of the targets' energy norm, the solver six digits of it.
    spreads, share = (0.5, 0.2) if method is TRAINED else (0.02, 1e-3)
    assert bool(((mean - expected.mean).abs() <= spreads * std + share * expected.mean.abs().max()).all())
    covariance = posterior.covariance(query).double()
    assert bool(torch.isfinite(covariance).all())
    assert float(torch.linalg.eigvalsh(covariance / covariance.abs().max().clamp_min(1e-300)).min()) >= -1e-6


# ---- Networks ----


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


def seeded(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
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


# ---- Data ----


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


# ---- The table ----

FIT = ["fit exact", "fit low rank", "fit to a tolerance", "fit trained"]
UPDATE = ["update exact", "update low rank", "update trained"]
TUNE = ["tune", "warm_up"]
OWN = ["plan_training", "paper's mean"]
DATA = [*FIT, *UPDATE, *TUNE, *OWN]
KERNEL = ["kernel", "kernel_diag"]
ASK = [f"{how} {name}" for how in ("predict", "covariance", "sample") for name in ("exact", "low rank", "trained")]
SAVE = ["save exact", "save low rank", "save trained"]
RIM = ["sklearn", "botorch"]
NETWORK = [*FIT, *TUNE, *OWN, *KERNEL]
BATCHED = ["fit", *FIT, *UPDATE, "tune"]
NOISY = [*FIT, *UPDATE, *OWN]


@dataclass(frozen=True)
class Row:
    what: str
    given: Callable[[], Given]
    outcome: Outcome
    entries: list[str]


def row(what: str, outcome: Outcome, entries: list[str], **given: Any) -> Row:
    return Row(what, lambda: Given(**given), outcome, entries)


DUPLICATED = X[[0, 0, 1, 1, 2, 2]]
CONSTANT_FEATURE = torch.stack([X[:, 0], torch.ones(6, dtype=torch.float64)], dim=1)

TABLE = [
    # Shapes
    row("fewer targets than points", refused("y must have shape (6,)", "(5,)"), [*DATA, "tune_table"], y=Y[:5]),
    row("fewer targets than points", refused("inconsistent numbers of samples", "6", "5"), ["sklearn"], y=Y[:5]),
    row("fewer targets than points", refused("train_Y"), ["botorch"], y=Y[:5]),
    row("too many columns of targets", refused("1 output(s)", "y has shape (6, 3)"), [*DATA, "botorch"],
        y=Y.unsqueeze(1).expand(6, 3)),
    row("targets with three axes", refused("y must have shape", "(6, 1, 1)"), [*DATA, "tune_table"], y=Y.view(6, 1, 1)),
    row("targets with three axes", refused("train_Y"), ["botorch"], y=Y.view(6, 1, 1)),
    row("a target without an axis", refused("y must have shape"), [*DATA, "tune_table"], y=Y[0]),
    row("no points", refused("x must hold at least one point"), [*DATA, *KERNEL, "tune_table"], x=X[:0], y=Y[:0]),
    row("no points", refused("train_X", "at least one"), ["botorch"], x=X[:0], y=Y[:0]),
    row("no points", refused("0 sample"), ["sklearn"], x=X[:0], y=Y[:0]),
    row("a point without an axis", refused("x must hold at least one point"), [*DATA, *KERNEL, "tune_table"], x=X[0, 0]),
    row("points of another width", refused("x", "(6, 3)"), [*DATA, *KERNEL], x=torch.zeros(6, 3, dtype=torch.float64)),
    row("points without features", refused("x", "(6,)"), ["tune_table"], x=X[:, 0]),
    row("one point", answered, [*FIT, *UPDATE, *KERNEL, *OWN, "tune", "tune_table", "botorch"], x=X[:1], y=Y[:1]),
    row("one column of targets", answered, [*FIT, *OWN, "tune", "tune_table", "botorch"], y=Y.unsqueeze(1)),
    # Types and devices
    row("x is a list", refused("x must be a torch.Tensor", "list"), [*DATA, *KERNEL, "tune_table"], x=X.tolist()),
    row("x is a list", refused("train_X must be a torch.Tensor", "list"), ["botorch"], x=X.tolist()),
    row("x is an array", refused("x must be a torch.Tensor", "ndarray"), [*DATA, *KERNEL, "tune_table"], x=X.numpy()),
    row("y is a list", refused("y must be a torch.Tensor", "list"), [*DATA, "tune_table"], y=Y.tolist()),
    row("x is None", refused("x must be a torch.Tensor", "NoneType"), [*DATA, *KERNEL, "tune_table"], x=None),
    row("y is missing", refused("y is missing"), [*FIT, *UPDATE, "tune"], y=None),
    row("integer x", refused("x must be real floating point", "int64"), [*DATA, *KERNEL], x=X.long()),
    row("boolean x", refused("x must be real floating point", "bool"), [*DATA, *KERNEL], x=X > 0),
    row("complex x", refused("x must be real floating point", "complex"), [*DATA, *KERNEL], x=X.to(torch.complex128)),
    row("sparse x", refused("x must be a dense tensor"), [*DATA, *KERNEL], x=X.to_sparse()),
    row("integer y", refused("y must be real floating point", "int64"), [*DATA, "tune_table"], y=Y.long()),
    row("complex y", refused("y must be real floating point", "complex"), [*DATA, "tune_table"], y=Y.to(torch.complex128)),
    row("sparse y", refused("y must be a dense tensor"), [*DATA, "tune_table"], y=Y.to_sparse()),
    row("x elsewhere", refused("x is on meta", "cpu"), [*DATA, *KERNEL], x=X.to("meta")),
    row("y elsewhere", refused("y is on meta", "cpu"), [*DATA, "tune_table"], y=Y.to("meta")),
    row("noise elsewhere", refused("noise_var", "meta"), NOISY, noise_var=torch.ones(6, device="meta")),
    row("float32 x and y", answered, ["fit exact", "fit low rank", "fit trained", "kernel", "kernel_diag", "tune"],
        x=X.float(), y=Y.float()),
    row("a float32 network and float64 data", answered, [*FIT, *UPDATE, "tune", *KERNEL],
        module=lambda: net(dtype=torch.float32)),
    row("x that asks for gradients", answered, [*FIT, *OWN, "tune"], x=X.clone().requires_grad_()),
    row("y that asks for gradients", answered, [*FIT, *OWN, "tune"], y=Y.clone().requires_grad_()),
    row("x strided oddly", answered, [*FIT, *UPDATE, *KERNEL], x=X.T.contiguous().T),
    # Values
    row("NaN in x", refused("x holds NaN or infinity in row 5"), [*DATA, *KERNEL, "tune_table"], x=with_value(X, NAN)),
    row("NaN in x", refused("X contains NaN"), ["sklearn"], x=with_value(X, NAN)),
    row("NaN in x", refused("train_X", "NaN"), ["botorch"], x=with_value(X, NAN)),
    row("infinity in x", refused("x holds NaN or infinity in row 5"), [*DATA, *KERNEL, "tune_table"], x=with_value(X, -INF)),
    row("infinity in x", refused("X contains infinity"), ["sklearn"], x=with_value(X, INF)),
    row("NaN in y", refused("y holds NaN or infinity in row 5"), [*DATA, "tune_table"], y=with_value(Y, NAN)),
    row("NaN in y", refused("y contains NaN"), ["sklearn"], y=with_value(Y, NAN)),
    row("NaN in y", refused("train_Y", "NaN"), ["botorch"], y=with_value(Y, NAN)),
    row("infinity in y", refused("y holds NaN or infinity in row 5"), [*DATA, "tune_table"], y=with_value(Y, INF)),
    row("constant features", answered, [*FIT, *UPDATE, *KERNEL, *RIM, "tune"], x=CONSTANT_FEATURE),
    row("all points the same", answered, [*FIT, *UPDATE, *KERNEL, "tune", "botorch"], x=X[[2] * 6]),
    row("all inputs zero", answered, [*FIT, *UPDATE, *KERNEL, "tune"], x=torch.zeros(6, 2, dtype=torch.float64)),
    row("constant targets", answered, NOISY, y=torch.ones(6, dtype=torch.float64)),
    row("constant targets", warned("y is constant"), ["sklearn"], y=torch.ones(6, dtype=torch.float64)),
    row("all targets zero", answered, NOISY, y=torch.zeros(6, dtype=torch.float64)),
    row("copies with different targets", answered, [*FIT, *UPDATE, *OWN, *RIM, "tune", "tune_table"], x=DUPLICATED),
    row("x of 1e300", refused("x", "row 5"), [*FIT, *UPDATE, *OWN, *KERNEL], x=with_value(X, 1e300), module=SQUARES),
    row("x of 1e300 that saturates", answered, ["kernel"], x=with_value(X, 1e300)),
    row("x of 1e-300", answered, [*FIT, *UPDATE, *KERNEL, "tune"], x=with_value(X, 1e-300)),
    row("x of 1e30 in float32", refused("x", "row 5"), ["fit low rank", "fit to a tolerance", *KERNEL],
        x=with_value(X, 1e30).float(), y=Y.float(), module=lambda: SQUARES().float()),
    row("y of 1e300", refused("y", "rescale"), [*FIT, *UPDATE, "tune", *OWN], y=with_value(Y, 1e300)),
    row("y of 1e-300", answered, [*FIT, "update exact"], y=1e-300 * Y),
    row("y of 1e300 and a float32 network", refused("y", "float32"), ["fit low rank", "fit to a tolerance"],
        y=with_value(Y, 1e300), module=lambda: net(dtype=torch.float32)),
    row("y of 1e100", answered, ["fit exact", "fit low rank", "update exact", "update low rank"], y=with_value(Y, 1e100)),
    row("an answer too large for the dtype of y", refused("float16", "row 0"), ["fit exact", "fit low rank"],
        y=Y.half(), query=1e4 * QUERY, module=SQUARES),
    # Noise
    row("no noise", refused("noise_var must be positive", "got 0"), [*NOISY, "tune"], noise_var=0.0),
    row("no noise", refused("noise_var must be positive"), RIM, noise_var=0.0),
    row("negative noise", refused("noise_var must be positive", "-0.1"), [*NOISY, "tune", *RIM], noise_var=-0.1),
    row("NaN noise", refused("noise_var must be positive and finite"), [*NOISY, "tune", *RIM], noise_var=NAN),
    row("infinite noise", refused("noise_var must be positive and finite"), [*NOISY, "tune"], noise_var=INF),
    row("too few noises", refused("noise_var", "(6,)", "(5,)"), [*NOISY, "tune"], noise_var=torch.ones(5)),
    row("noise as text", refused("noise_var", "'small'"), ["tune", *RIM], noise_var="small"),
    row("noise as text", refused("noise_var must be a number or a torch.Tensor", "str"), NOISY, noise_var="small"),
    row("no noise at all", refused("noise_var must be a number"), [*FIT, *OWN], noise_var=None),
    row("noise beyond all numbers", refused("noise_var"), NOISY, noise_var=10**400),
    row("complex noise", refused("noise_var must be real"), NOISY, noise_var=torch.ones(6, dtype=torch.complex64)),
    row("enormous noise", answered, NOISY, noise_var=1e12),
    row("noise of 1e300", answered, ["fit exact", "fit low rank", "update exact", "update low rank"], noise_var=1e300),
    row("noise below float32", refused("noise_var", "float32"), ["fit low rank", "fit to a tolerance"], noise_var=1e-100,
        module=lambda: net(dtype=torch.float32)),
    row("tiny noise", answered, ["fit exact", "fit low rank", "update exact", "update low rank"], noise_var=1e-8),
    row("noise below rounding", warned("noise_var"), ["fit exact"], noise_var=1e-25, x=DUPLICATED),
    row("noise of very different sizes", answered, ["fit exact", "fit low rank", "update exact"],
        noise_var=torch.tensor([1e-6, 1e6, 1.0, 1e-3, 1e3, 1.0], dtype=torch.float64)),
    # Priors
    row("no prior variance", refused("prior_var must be positive", "got 0"), FIT, prior_var=0.0),
    row("prior variance as text", refused("prior_var", "'wide'"), FIT, prior_var="wide"),
    row("prior variance None", refused("prior_var"), FIT, prior_var=None),
    row("prior variance of 1e300", refused("prior_var"), FIT, prior_var=1e300),
    row("prior variance of 1e-300", answered, ["fit exact", "fit low rank"], prior_var=1e-300),
    row("prior variance of no layer", refused("prior_var names 'head'"), FIT, prior_var={"": 1.0, "head": 2.0}),
    row("prior mean of a wrong shape", refused("prior_mean must return", "(6, 1)"), [*FIT, "plan_training"],
        prior_mean=lambda x: torch.ones(3)),
    row("prior mean of NaN", refused("prior_mean returned NaN"), [*FIT, "plan_training"], prior_mean=lambda x: x[:, 0] * NAN),
    row("prior mean as a number", refused("prior_mean must be None"), [*FIT, "plan_training"], prior_mean=0.5),
    row("a seed for a generator", refused("generator must be a torch.Generator", "int"), [*FIT, "update low rank", "tune"],
        generator=7),
    # Queries
    row("NaN in the query", refused("x holds NaN or infinity in row 2"), ASK, query=with_value(QUERY, NAN)),
    row("infinity in the query", refused("x holds NaN or infinity in row 2"), ASK, query=with_value(QUERY, INF)),
    row("a query of no points", refused("x must hold at least one point"), ASK, query=QUERY[:0]),
    row("a query of another width", refused("x must have shape (M, 2)", "(3, 3)"), ASK, query=QUERY[:, [0, 1, 1]]),
    row("a query without its axis", refused("x must"), ASK, query=QUERY[0]),
    row("a list for a query", refused("x must be a torch.Tensor", "list"), ASK, query=QUERY.tolist()),
    row("a query of integers", refused("x must be real floating point"), ASK, query=QUERY.long()),
    row("a sparse query", refused("x must be a dense tensor"), ASK, query=QUERY.to_sparse()),
    row("a query elsewhere", refused("x is on meta"), ASK, query=QUERY.to("meta")),
    row("a query of 1e300", refused("x", "row 2"), ASK, query=with_value(QUERY, 1e300), module=SQUARES),
    row("a query of 1e-300", answered, ASK, query=with_value(QUERY, 1e-300)),
    row("one query", answered, ASK, query=QUERY[:1]),
    row("a query in float32", answered, ["predict low rank", "covariance low rank", "predict trained"], query=QUERY.float()),
    row("the same query twice", answered, ASK, query=QUERY[[0, 0]]),
    row("a query of another width", refused("x2 must have shape (M, 2)"), ["kernel"], query=QUERY[:, :1]),
    row("NaN in the query", refused("x2 holds NaN"), ["kernel"], query=with_value(QUERY, NAN)),
    row("a query elsewhere", refused("x2 is on meta"), ["kernel"], query=QUERY.to("meta")),
    row("NaN in the query", refused("NaN"), ["sklearn"], query=with_value(QUERY, NAN)),
    row("a query of another width", refused("2 features"), ["sklearn"], query=QUERY[:, :1]),
    row("NaN in the query", refused("NaN"), ["botorch"], query=with_value(QUERY, NAN)),
    row("negative noise of the query", refused("noise_var must be positive"), ASK[:3], noise_var=-1.0),
    row("too much noise of the query", refused("noise_var", "(6,)"), ASK[:3], noise_var=torch.ones(6)),
    # Networks
    row("not a module", refused("module must be a torch.nn.Module"), NETWORK, module=lambda: torch.sin),
    row("no parameters", refused("module has no trainable parameters"), NETWORK, module=nn.Tanh),
    row("all frozen", refused("module has no trainable parameters", "frozen"), NETWORK,
        module=lambda: net().requires_grad_(False)),
    row("NaN weights", refused("'0.weight' holds NaN"), NETWORK, module=lambda: spoiled(NAN)),
    row("infinite weights", refused("'0.weight' holds NaN or infinity"), [*FIT, *KERNEL], module=lambda: spoiled(INF)),
    row("weights of 1e300", refused("x", "finite"), [*FIT, *KERNEL], module=lambda: spoiled(1e300, -1)),
    row("complex weights", refused("must be real floating point"), NETWORK,
        module=lambda: nn.Linear(2, 1, dtype=torch.complex128)),
    row("weights of two dtypes", refused("must share one dtype"), NETWORK, module=lambda: partly(torch.float32)),
    row("weights without values", refused("meta"), [*FIT, *TUNE, *KERNEL], module=lambda: net().to("meta")),
    row("an output that counts calls", refused("the module is stochastic"), NETWORK, module=custom(counting)),
    row("random outputs", refused("the module is stochastic"), NETWORK,
        module=custom(lambda m, x, out: out + torch.rand(()))),
    row("NaN out", refused("module returns NaN"), NETWORK, module=custom(lambda m, x, out: out * NAN)),
    row("NaN out for some points", refused("x", "row 5"), [*FIT, *OWN, *KERNEL],
        module=custom(lambda m, x, out: torch.where(x[:, :1] == X[5, 0], NAN, 1.0) * out)),
    row("a buffer that changes", refused("buffer 'count' changes"), NETWORK, module=custom(buffered)),
    row("an input that is overwritten", refused("the module changes its input"), NETWORK, module=custom(overwriting)),
    row("outputs that mix points", refused("depends on the other points"), [*FIT, *TUNE, *KERNEL],
        module=custom(lambda m, x, out: out - out.mean(dim=0))),
    row("two tensors out", refused("must return one tensor", "tuple"), NETWORK, module=custom(lambda m, x, out: (out, out))),
    row("three axes out", refused("must return shape"), NETWORK, module=custom(lambda m, x, out: out[..., None])),
    row("an error inside", refused("the module cannot be called on x"), NETWORK,
        module=custom(lambda m, x, out: out @ out)),
    row("dropout that is on", refused("training mode", "module.eval()"), NETWORK,
        module=seeded(lambda: nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1)))),
    row("in-place activations", answered, [*FIT, *UPDATE, *KERNEL, "tune", *SAVE], module=seeded(in_place)),
    row("tied weights", answered, [*FIT, *UPDATE, *KERNEL], module=seeded(SharedWeight),
        y=torch.stack([Y, -Y], dim=1)),
    row("a layer used twice", answered, [*FIT, *UPDATE, *KERNEL, "tune", *SAVE], module=seeded(UsedTwice)),
    row("a lambda for activation", answered, [*FIT, *UPDATE, *KERNEL, "tune", "botorch", *SAVE], module=seeded(Lambda)),
    row("outputs squeezed", answered, [*FIT, *UPDATE, *KERNEL, *SAVE], module=seeded(Squeezed)),
    row("a weight that does nothing", answered, [*FIT, *UPDATE, *KERNEL, *SAVE],
        module=custom(lambda m, x, out: out.detach() * 0 + m.layer.bias * x[:, :1])),
    row("outputs without gradients", refused("does not depend on its trainable parameters"), NETWORK,
        module=custom(lambda m, x, out: out.detach())),
    row("a network of constants", answered, ["fit exact", *KERNEL], module=custom(lambda m, x, out: out * 0 + m.layer.bias)),
    # Batches
    row("batches", answered, ["fit", *FIT, "tune"], x=halves(), y=None),
    row("a generator that runs dry", refused("x must be a tensor or something that can be iterated over again"), BATCHED,
        x=iter(halves()), y=None),
    row("no batches", refused("x gave no batches"), BATCHED, x=[], y=None),
    row("batches that are no pairs", refused("each batch must be a pair"), BATCHED, x=[X, X], y=None),
    row("batches of lists", refused("must be a torch.Tensor", "list"), BATCHED, x=[(X.tolist(), Y)], y=None),
    row("batches of several widths", refused("x", "(3, 1)"), BATCHED, x=[halves()[0], (X[3:, :1], Y[3:])], y=None),
    row("batches whose targets do not fit", refused("y must have shape (3,)"), BATCHED,
        x=[halves()[0], (X[3:], Y[:2])], y=None),
    row("an empty batch", refused("x must hold at least one point"), BATCHED, x=[halves()[0], (X[:0], Y[:0])], y=None),
    row("NaN in a later batch", refused("x holds NaN"), BATCHED, x=halves(with_value(X, NAN)), y=None),
    Row("batches that run dry", lambda: Given(x=Batches(lambda k: halves() if k == 1 else []), y=None),
        refused("x gave", "batches"), ["fit low rank", "fit to a tolerance"]),
    Row("batches that become fewer", lambda: Given(x=Batches(lambda k: halves()[: 2 if k < 4 else 1]), y=None),
        refused("batches must stay the same"), ["fit low rank", "fit to a tolerance"]),
    Row("batches that become more", lambda: Given(x=Batches(lambda k: halves() + (halves() if k > 3 else [])), y=None),
        refused("batches must stay the same"), ["fit low rank", "fit to a tolerance"]),
    Row("batches in another order", lambda: Given(x=Batches(lambda k: halves()[:: 1 if k < 4 else -1]), y=None),
        refused("batches must stay the same"), ["fit low rank", "fit to a tolerance"]),
    Row("a loader that shuffles", lambda: Given(x=shuffling(), y=None),
        refused("batches must stay the same", "shuffle"), ["fit low rank", "fit to a tolerance"]),
    # Two tensors
    row("batches and targets", refused("x must be a torch.Tensor"), [*FIT, *UPDATE, "tune"], x=halves()),
]  # fmt: skip

CASES = [pytest.param(r, entry, id=f"{entry}: {r.what}") for r in TABLE for entry in r.entries]


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """A case that takes minutes of work has failed."""

    def stop(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(900)  # by the wall, however busy the machine
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


# ---- Options: what a method, a draw or a tool is asked for ----

OPTIONS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "rank above the points": (lambda: fitted(ntkgp.LowRank(rank=7)), ["rank must be at most", "min(6, 16)", "got 7"]),
    "rank above the points, trained": (lambda: fitted(ntkgp.TrainedNetworks(rank=7)), ["rank must be at most", "got 7"]),
    "rank 0": (lambda: ntkgp.LowRank(rank=0), ["rank must be at least 1", "got 0"]),
    "rank 0, trained": (lambda: fitted(ntkgp.TrainedNetworks(rank=0)), ["rank must be at least 1"]),
    "rank of 2.5": (lambda: ntkgp.LowRank(rank=2.5), ["rank must be a whole number"]),  # pyright: ignore
    "rank of True": (lambda: ntkgp.LowRank(rank=True), ["rank must be a whole number"]),
    "rank and rtol": (lambda: ntkgp.LowRank(rank=2, rtol=0.1), ["either a rank or an rtol"]),
    "neither rank nor rtol": (lambda: ntkgp.LowRank(), ["either a rank or an rtol"]),
    "rtol 0": (lambda: ntkgp.LowRank(rtol=0.0), ["rtol", "positive"]),
    "rtol NaN": (lambda: ntkgp.LowRank(rtol=NAN), ["rtol", "positive"]),
    "rtol as text": (lambda: ntkgp.LowRank(rtol="small"), ["rtol", "number"]),  # pyright: ignore
    "tail -1": (lambda: ntkgp.LowRank(rank=2, tail=-1), ["tail must be at least 0"]),
    "max_rank 0": (lambda: ntkgp.LowRank(rtol=0.1, max_rank=0), ["max_rank must be at least 1"]),
    "points of rtol": (lambda: fitted(ntkgp.LowRank(rtol=0.1, points=X[:, :1])), ["x must have shape (M, 2)"]),
    "solver tolerance 0": (lambda: ntkgp.CGLS(tol=0.0), ["tol of CGLS", "positive"]),
    "solver without steps": (lambda: ntkgp.CGLS(max_iterations=0), ["max_iterations must be at least 1"]),
    "power iteration without steps": (lambda: ntkgp.PowerIteration(max_iterations=0), ["max_iterations"]),
    "power iteration, tolerance": (lambda: ntkgp.PowerIteration(tol=-1.0), ["tol of PowerIteration"]),
    "negative oversampling": (lambda: ntkgp.RandomizedSVD(oversample=-1), ["oversample must be at least 0"]),
    "negative power": (lambda: ntkgp.RandomizedSVD(power=-1), ["power must be at least 0"]),
    "Lanczos block 0": (lambda: ntkgp.Lanczos(block=0), ["block must be at least 1"]),
    "Lanczos basis 0": (lambda: ntkgp.Lanczos(max_basis=0), ["max_basis must be at least 1"]),
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
    "observations of another shape": (lambda: ntkgp.evaluate(fitted(EXACT).predict(QUERY), Y), ["y must have the shape"]),
    "observations of NaN": (lambda: ntkgp.evaluate(fitted(EXACT).predict(QUERY), QUERY[:, 0] * NAN), ["y holds NaN"]),
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


def fitted(method: Any, **options: Any) -> ntkgp.Posterior:
    return ntkgp.fit(net(), X, Y, **{"noise_var": 0.1, "method": method, **options})


@pytest.mark.parametrize("what", OPTIONS)
def test_bad_options(what: str):
    act, words = OPTIONS[what]
    with unchanged(), pytest.raises((ValueError, TypeError, FileNotFoundError)) as error:
        act()
    assert [word for word in words if word not in str(error.value)] == [], str(error.value)


# ---- The command line ----

GOOD = "a,b,kind,y\n" + "\n".join(f"{k},{k * k},{'uv'[k % 2]},{k % 5}" for k in range(16)) + "\n"
SMALL = ["--width", "4", "--steps", "2", "--starts", "1", "--quiet"]
TABLES: dict[str, tuple[bytes | str, list[str]]] = {
    "an empty file": ("", ["cannot be read"]),
    "a header alone": ("a,b,kind,y\n", ["has no rows"]),
    "no such target": (GOOD.replace(",y", ",z"), ["no column 'y'"]),
    "a missing value": (GOOD.replace("3,9,", ",9,"), ["column 'a' has no value in 1 of 16 rows", "--drop-missing"]),
    "NaN": (GOOD.replace("3,9,", "NaN,9,"), ["column 'a' has no value"]),
    "infinity": (GOOD.replace("3,9,", "inf,9,"), ["column 'a' has no value"]),
    "texts for targets": ("a,y\n1,u\n2,v\n", ["'y' must hold numbers"]),
    "targets alone": ("y\n1\n2\n", ["no column left for features"]),
    "rows of different lengths": ("a,y\n1,2\n1,2,3\n", ["cannot be read"]),
    "the same column twice": ("a,a,y\n1,2,3\n", ["twice", "a"]),
    "no text": (bytes(range(256)), ["no column 'y'"]),
    "values of 1e300": ("a,y\n1e300,1\n-1e300,2\n3,4\n", ["column 'a'", "rescale"]),
    "targets of 1e300": ("a,y\n1,1e300\n2,-1e300\n3,4\n", ["column 'y'", "rescale"]),
}
ANSWERED = {
    "one row": "a,y\n1,2\n",
    "constant features": "a,y\n" + "1,2\n1,3\n" * 4,
    "constant targets": "a,y\n" + "1,2\n2,2\n3,2\n" * 2,
    "the same row with different targets": "a,y\n1,2\n1,3\n1,4\n2,5\n",
    "values of 1e-300": "a,y\n1e-300,1e-300\n2e-300,3e-300\n4e-300,1e-300\n",
    "values of 1e100": "a,y\n1e100,1e100\n-1e100,-2e100\n3e100,1e100\n",
    "a name with odd letters": 'a,"y/../é"\n1,2\n2,3\n3,4\n',
}
COMMANDS: dict[str, tuple[list[str], list[str]]] = {
    "width 0": (["fit", "good.csv", "--target", "y", "--width", "0"], ["width must be at least 1"]),
    "no steps": (["fit", "good.csv", "--target", "y", "--steps", "0"], ["steps must be at least 1"]),
    "no starts": (["fit", "good.csv", "--target", "y", "--starts", "0"], ["starts must be at least 1"]),
    "rank 0": (["fit", "good.csv", "--target", "y", "--rank", "0"], ["rank must be at least 1"]),
    "tuned on no rows": (["fit", "good.csv", "--target", "y", "--max-rows-tuning", "0"], ["points must be at least 1"]),
    "a seed of 30 digits": (["fit", "good.csv", "--target", "y", "--seed", "1" * 30], ["seed"]),
    "the same target twice": (["fit", "good.csv", "--target", "y", "--target", "y"], ["'y'", "twice"]),
    "a target that is ignored": (["fit", "good.csv", "--target", "y", "--ignore", "y"], ["'y'"]),
    "an unknown device": (["fit", "good.csv", "--target", "y", "--device", "gpu"], ["expected cpu"]),
    "noise without columns": (["fit", "good.csv", "--target", "y", "--noise-column", "n"], ["no column 'n'"]),
    "negative noise": (["fit", "good.csv", "--target", "y", "--noise-column", "a"], ["'a' must hold positive variances"]),
    "noise of texts": (["fit", "good.csv", "--target", "y", "--noise-column", "kind"], ["'kind' must hold numbers"]),
    "no table": (["fit", "none.csv", "--target", "y"], ["there is no file"]),
    "a folder of tables that differ": (["fit", ".", "--target", "y"], ["short.csv has no column"]),
    "a folder without tables": (["fit", "model", "--target", "y"], ["model"]),
    "a table of no kind": (["fit", "table.xyz", "--target", "y"], ["must end in .csv"]),
    "no model": (["predict", "none", "good.csv"], ["there is no model"]),
    "no table to predict": (["predict", "model", "none.csv"], ["there is no file"]),
    "level 2": (["predict", "model", "good.csv", "--level", "2"], ["level"]),
    "level NaN": (["predict", "model", "good.csv", "--level", "nan"], ["level"]),
    "a picture of predictions": (["predict", "model", "good.csv", "--out", "p.png"], ["must end in .csv"]),
    "a table without a column": (["predict", "model", "short.csv"], ["no column 'b'"]),
    "level -1": (["evaluate", "model", "good.csv", "--level", "-1"], ["level"]),
    "no targets to evaluate": (["evaluate", "model", "short.csv"], ["no column"]),
    "evaluate no model": (["evaluate", "none", "good.csv"], ["there is no model"]),
    "an unknown problem": (["figure1", "--problem", "none"], ["problem must be one of"]),
    "no training": (["figure1", "--max-steps", "0"], ["max_steps"]),
    "no signal": (["figure1", "--signal", "0"], ["signal"]),
    "no eigenvectors": (["figure1", "--rank", "0", "--width", "8"], ["rank"]),
    "a figure of width 0": (["figure1", "--width", "0"], ["width"]),
    "a figure's seed of 30 digits": (["figure1", "--width", "8", "--seed", "1" * 30], ["seed"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table and a model; without trained features, which take most of the time."""
    home = tmp_path_factory.mktemp("home")
    (home / "good.csv").write_text(GOOD)
    (home / "short.csv").write_text("a,kind\n1,u\n2,v\n")
    (home / "table.xyz").write_text(GOOD)
    columns = [Column("a", "number"), Column("b", "number"), Column("kind", "category", ("u", "v"))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = fit_table(pl.read_csv(home / "good.csv"), columns, ["y"], options=Options(width=4, steps=2, starts=1))
    table_folder.save(model, home / "model")
    return home


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        table_model, "tune_table", lambda x, y, **options: ntkgp.tune_table(x, y, **{**options, "warm_networks": 0})
    )


def said(*arguments: Any, code: int) -> str:
    """What a command said on standard error, unwrapped; no traceback, and nothing changed."""
    with unchanged(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit | None), result.exception
    return " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("what", TABLES)
def test_tables_that_cannot_be_fitted(what: str, tmp_path: Path):
    content, words = TABLES[what]
    path = tmp_path / "table.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    text = said("fit", path, "--target", "y", "--out", tmp_path / "model", *SMALL, code=2)
    assert [word for word in words if word not in text] == [], text


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("what", ANSWERED)
def test_odd_tables_that_can_be_fitted(what: str, tmp_path: Path):
    (tmp_path / "table.csv").write_text(ANSWERED[what])
    table = pl.read_csv(tmp_path / "table.csv")
    target = table.columns[1]
    said("fit", tmp_path / "table.csv", "--target", target, "--out", tmp_path / "model", *SMALL, code=0)
    said("predict", tmp_path / "model", tmp_path / "table.csv", "--out", tmp_path / "p.csv", "--quiet", code=0)
    found = pl.read_csv(tmp_path / "p.csv")
    assert len(found) == len(table)
    assert all(series.is_finite().all() for series in found)
    assert bool((found["total_std"] >= found["epistemic_std"]).all())
    spread = table[target].abs().to_numpy().max() or 1.0
    assert float((found["mean"] - table[target].mean()).abs().max()) <= 3 * spread
    said("evaluate", tmp_path / "model", tmp_path / "table.csv", "--out", tmp_path / "report", "--quiet", code=0)


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("what", COMMANDS)
def test_commands_that_cannot_be_run(what: str, home: Path, monkeypatch: pytest.MonkeyPatch):
    arguments, words = COMMANDS[what]
    monkeypatch.chdir(home)
    quiet = [*SMALL[:-1], "--quiet"] if arguments[0] == "fit" else ["--quiet"]
    given = [option for k, option in enumerate(quiet) if option not in arguments and (k == 0 or quiet[k - 1] not in arguments)]
    text = said(*arguments, *given, code=2)
    assert [word for word in words if word not in text] == [], text
    assert sorted(path.name for path in home.iterdir()) == ["good.csv", "model", "short.csv", "table.xyz"]


def sizes() -> dict[str, int]:
    return {"entries": len(ENTRIES), "kinds": len({r.what for r in TABLE}), "entries_and_kinds": len(CASES),
            "options": len(OPTIONS), "tables": len(TABLES) + len(ANSWERED), "commands": len(COMMANDS)}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _recorded(request: pytest.FixtureRequest) -> Iterator[None]:
    with recorded("bad_input", request, sizes):
        yield


def test_the_table_is_large():
    assert len(CASES) >= 1000
    assert {entry for r in TABLE for entry in r.entries} == set(ENTRIES)


@pytest.mark.filterwarnings("always::ntkgp.NumericalWarning")
@pytest.mark.parametrize(("r", "entry"), CASES)
def test_bad_input(r: Row, entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if entry == "botorch":
        pytest.importorskip("botorch", reason="BoTorch needs Python 3.11")
    given = r.given()
    module = given.module()
    given = replace(given, module=lambda: module)
    modules = [m for m in [module] if isinstance(m, nn.Module) and next(m.parameters(), torch.empty(0)).device.type == "cpu"]
    before = [t.detach().clone() for t in (given.x, given.y, given.query, given.noise_var) if is_plain(t)]
    with warnings.catch_warnings(record=True) as caught, unchanged(*modules):
        warnings.simplefilter("error")
        warnings.filterwarnings(
            "ignore", message=".*not (standardized|scaled|contained to the unit cube)"
        )  # BoTorch, about units
        warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")
        warnings.filterwarnings("always", category=ntkgp.NumericalWarning)
        if r.outcome.kind == "refused":
            with pytest.raises((ValueError, TypeError)) as error:
                ENTRIES[entry](given, tmp_path)
            assert [word for word in r.outcome.words if word not in str(error.value)] == [], str(error.value)
        else:
            monkeypatch.setattr(sys.modules[__name__], "LENIENT", [True] if r.outcome.kind == "warned" else [])
            ENTRIES[entry](given, tmp_path)
    said = [str(warning.message) for warning in caught if issubclass(warning.category, ntkgp.NumericalWarning)]
    if r.outcome.kind == "answered":
        assert [text for text in said if "edge of its range" not in text] == []
    if r.outcome.kind == "warned":
        assert any(all(word in text for word in r.outcome.words) for text in said), said
    after = [t for t in (given.x, given.y, given.query, given.noise_var) if is_plain(t)]
    assert all(a.detach().numpy().tobytes() == b.numpy().tobytes() for a, b in zip(after, before, strict=True))


def is_plain(t: Any) -> bool:
    return isinstance(t, Tensor) and t.layout == torch.strided and t.device.type == "cpu"
