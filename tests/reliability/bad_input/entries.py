"""Every public entry, and the judge of what it answers: in many digits, by support/precise.py."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import ntkgp
from ntkgp.sklearn import NTKGPRegressor
from tests.reliability.bad_input.given import QUERY, Given, X, Y
from tests.support import oracle, precise
from tests.support.helpers import SURE

EXACT, LOW_RANK, FULL_RANK = (
    ntkgp.Exact(),
    ntkgp.LowRank(rank=1, draws=2, confidence=SURE),
    ntkgp.LowRank(rtol=0.5, confidence=SURE),
)
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


def asked(how: Callable[[ntkgp.posterior.Posterior, Given], Any], method: Any) -> Callable[[Given, Path], None]:
    """A posterior of good data, asked about the given query (with the given noise)."""

    def entry(given: Given, folder: Path) -> None:
        good, module = Given(), given.module()
        posterior = ntkgp.fit(module, good.x, good.y, noise_var=0.1, method=method, generator=good.generator)
        answer = how(posterior, given)
        assert bool(torch.isfinite(answer).all())
        if method is EXACT:
            judge(posterior, truth(module, replace(good, query=given.query)), method, given.query)

    return entry


def predicted(posterior: ntkgp.posterior.Posterior, given: Given) -> Tensor:
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
    module = ntkgp.warm_up(given.module(), given.x, given.y, steps=(3,), generator=given.generator).module
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
    posterior: ntkgp.posterior.Posterior, expected: precise.Precise, method: Any, query: Tensor = QUERY, single: bool = False
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
