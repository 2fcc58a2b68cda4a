"""Functions drawn from posteriors: 10⁵ of them have the posterior's mean and covariance, entry by entry."""

import math
from functools import partial

import pytest
import torch

import ntkgp
from tests.support.cases import Case, by_name, reference
from tests.support.helpers import Method, seeded
from tests.support.moments import bound, narrow, z_scores
from tests.support.oracle import error
from tests.support.typechecker import switched_off

DRAWS = 100_000
DRAWN_FROM: dict[str, Method] = {
    "exact": ntkgp.Exact(),
    "low rank, full": ntkgp.LowRank(rank=12),
    "low rank, truncated": ntkgp.LowRank(rank=3),
    "low rank, truncated, with a tail": ntkgp.LowRank(rank=3, draws=4),
    "trained": ntkgp.TrainedNetworks(rank=3, trainer=ntkgp.AcceleratedGD(tol=0.2)),  # far from exact, on purpose
}
each_method = pytest.mark.parametrize("method", DRAWN_FROM)


def fitted(case: Case, method: str) -> ntkgp.posterior.Posterior:
    return case.fit(DRAWN_FROM[method], generator=seeded())


@each_method
@pytest.mark.parametrize("name", ["paper mlp", "noise per output", "noise per point", "network as prior mean"])
def test_the_moments_of_many_draws(method: str, name: str):
    case, truth = narrow(name)
    if method == "low rank, full":
        posterior = case.fit(ntkgp.LowRank(rank=min(truth.train.shape)), generator=seeded())
    else:
        posterior = fitted(case, method)
    p = posterior.predict(case.query)
    with switched_off():  # a few draws are checked below
        values = posterior.sample(DRAWS, generator=seeded(1))(case.query).reshape(DRAWS, -1)
    mean, covariance = z_scores(values, p.mean.flatten(), truth.covariance)
    assert float(mean.abs().max()) <= bound(mean.numel())
    assert float(covariance.abs().max()) <= bound(covariance.numel())
    if method in ("exact", "low rank, full"):  # where the covariance is not an estimate, it is that of the draws
        assert error(posterior.covariance(case.query), truth.covariance) <= 1e-7
    error_of_variance = bound(len(truth.variance)) * truth.variance * math.sqrt(2 / DRAWS)
    drawn = values.var(dim=0)
    assert bool((drawn >= p.lower.flatten() - error_of_variance).all())
    assert bool((drawn <= p.upper.flatten() + error_of_variance).all())


def test_the_test_notices_a_small_error():
    """Of one per cent in the standard deviation, or of two per cent of it in the mean."""
    case, truth = by_name("paper mlp"), reference(by_name("paper mlp"))
    values = fitted(case, "exact").sample(DRAWS, generator=seeded(1))(case.query)
    off, spread = values - truth.mean, truth.variance.sqrt()
    _, covariance = z_scores(truth.mean + 1.01 * off, truth.mean, truth.covariance)
    assert float(covariance.abs().max()) > bound(covariance.numel())
    mean, _ = z_scores(values + 0.02 * spread, truth.mean, truth.covariance)
    assert float(mean.abs().max()) > bound(mean.numel())


@each_method
@pytest.mark.parametrize("name", ["two outputs", "cnn"])
def test_a_function_is_the_same_wherever_it_is_asked(method: str, name: str):
    """In one call, again, point by point, in another order, and amid others."""
    case = by_name(name)
    posterior = fitted(case, "low rank, truncated" if "full" in method else method)
    f, x = posterior.sample(4, generator=seeded(1)), case.query
    values = f(x)
    assert values.shape == (4, len(x), case.outputs)
    assert torch.equal(values, f(x))
    close = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-9)
    close(values, torch.cat([f(point) for point in x.split(1)], dim=1))
    close(values.flip(1), f(x.flip(0)))
    close(values, f(torch.cat([x, case.x]))[:, : len(x)])
    close(values[2:3], f[2](x))
    close(values[-1:], f[-1](x))
    close(values[1:3], f[1:3](x))
    same = posterior.sample(4, generator=seeded(1))
    assert torch.equal(same(x), values)


@each_method
def test_draws_are_differentiable(method: str):
    case = by_name("two outputs") if method == "trained" else by_name("paper mlp")
    f = fitted(case, method).sample(3, generator=seeded(1))
    x, way = case.query[:4].clone().requires_grad_(), torch.randn(4, 2, generator=seeded(2), dtype=torch.float64)
    f(x).sum().backward()
    numeric = (f(x.detach() + 1e-6 * way) - f(x.detach() - 1e-6 * way)).sum() / 2e-6
    assert x.grad is not None
    torch.testing.assert_close((x.grad * way).sum(), numeric, rtol=1e-5, atol=1e-6)


def test_one_output_as_a_column_keeps_its_axis():
    case = by_name("one output as a column")
    assert fitted(case, "exact").sample(2)(case.query).shape == (2, len(case.query), 1)
