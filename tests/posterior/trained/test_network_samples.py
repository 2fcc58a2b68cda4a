"""Posterior draws from trained networks: their moments against the oracle's, and how they may be used."""

from dataclasses import replace
from functools import partial

import pytest
import torch

import ntkgp
from ntkgp.posterior.trained.posterior import TrainedPosterior
from tests.support import oracle
from tests.support.cases import by_name
from tests.support.helpers import seeded
from tests.support.moments import bound, narrow, z_scores
from tests.support.unchanged import unchanged

DRAWS = 4000
# So close to its tangent, and so well trained, that what is left is far below the error of 4000 draws (1.6 % of the std).
CAREFUL = ntkgp.AcceleratedGD(tol=1e-4)


def trained(case, trainer: ntkgp.AcceleratedGD = CAREFUL, rank: int = 3) -> TrainedPosterior:
    posterior = case.fit(ntkgp.TrainedNetworks(rank=rank, trainer=trainer), generator=seeded())
    assert isinstance(posterior, TrainedPosterior)
    return posterior


@pytest.mark.parametrize("name", ["paper mlp", "noise per output", "noise per point", "network as prior mean"])
def test_the_moments_of_many_networks(name: str):
    """Mean and every entry of the covariance, in standard errors: not those of the fit's rank 3, but the exact ones."""
    case, truth = narrow(name)
    f = trained(case).sample_networks(DRAWS, generator=seeded(1))
    mean, covariance = z_scores(f(case.query).reshape(DRAWS, -1), truth.mean, truth.covariance)
    assert float(mean.abs().max()) <= bound(mean.numel())
    assert float(covariance.abs().max()) <= bound(covariance.numel())


def test_every_network_is_a_draw_by_matherons_rule():
    """m′ + J′(z + JᵀA⁻¹(r − Jz − ε)), by the oracle, with the z and the ε that the network was trained for."""
    case, truth = narrow("noise per point")
    f, draws = trained(case).sample_networks(50, generator=seeded(1)), seeded(1)
    z = torch.randn(truth.train.shape[1], 50, generator=draws, dtype=torch.float64)
    noise = truth.noise.sqrt().unsqueeze(1) * torch.randn(len(truth.noise), 50, generator=draws, dtype=torch.float64)
    assert torch.equal(f.weights, z)
    moved = truth.smoother @ (truth.residual.unsqueeze(1) - truth.train @ z - noise)
    expected = truth.query_mean.unsqueeze(1) + truth.query @ z + moved
    assert oracle.error(f(case.query).T, expected) < 0.01


def test_the_test_notices_draws_without_noise_or_without_a_prior():
    case, truth = narrow("paper mlp")
    posterior = trained(case)
    f = posterior.sample_networks(DRAWS, generator=seeded(1))
    alone = replace(f, weights=torch.zeros_like(f.weights))(case.query)  # the networks without their draws of the prior
    quiet = replace(truth, noise=1e-6 * truth.noise)
    for values, what in ((alone, truth), (f(case.query), quiet)):
        _, covariance = z_scores(values.reshape(DRAWS, -1), what.mean, what.covariance)
        assert float(covariance.abs().max()) > bound(covariance.numel())


def test_prior_variances_of_layers_count():
    case, _ = narrow("paper mlp")
    case = replace(case, prior_var={"": 0.5, "0": 2.0})
    truth = oracle.pose(case.module(), case.x, case.y, case.query, case.noise_var, prior_var=case.prior_var)
    values = trained(case).sample_networks(DRAWS, generator=seeded(1))(case.query)
    mean, covariance = z_scores(values, truth.mean, truth.covariance)
    assert float(mean.abs().max()) <= bound(mean.numel())
    assert float(covariance.abs().max()) <= bound(covariance.numel())


def test_a_draw_is_the_same_wherever_it_is_asked():
    case = by_name("two outputs")
    posterior = trained(case, ntkgp.AcceleratedGD(tol=0.1))
    f, x = posterior.sample_networks(4, generator=seeded(1)), case.query
    values = f(x)
    assert values.shape == (4, len(x), 2)
    close = partial(torch.testing.assert_close, rtol=1e-8, atol=1e-8)
    close(values, torch.cat([f(point) for point in x.split(1)], dim=1))
    close(values[2:3], f[2](x))
    close(values[-1:], f[-1](x))
    close(values[1:3], f[1:3](x))
    assert torch.equal(posterior.sample_networks(4, generator=seeded(1))(x), values)
    assert not torch.equal(posterior.sample_networks(4, generator=seeded(2))(x), values)


def test_draws_are_differentiable():
    case = by_name("two outputs")
    f = trained(case, ntkgp.AcceleratedGD(tol=0.1)).sample_networks(3, generator=seeded(1))
    x, way = case.query[:4].clone().requires_grad_(), torch.randn(4, 2, generator=seeded(2), dtype=torch.float64)
    f(x).sum().backward()
    numeric = (f(x.detach() + 1e-5 * way) - f(x.detach() - 1e-5 * way)).sum() / 2e-5
    assert x.grad is not None
    torch.testing.assert_close((x.grad * way).sum(), numeric, rtol=1e-4, atol=1e-5)


def test_networks_that_leave_their_tangent_are_real_networks():
    """Targets of the size of the prior: members fit the data to the noise, and are not the draws of the linearised one."""
    case = replace(narrow("paper mlp")[0], build=lambda: ntkgp.mlp(2, width=128, depth=1, generator=seeded(7)))
    posterior = trained(case, ntkgp.AcceleratedGD(signal=0.3, tol=0.02))
    f = posterior.sample_networks(8, generator=seeded(1))
    assert float((f(case.x) - case.y).square().mean().sqrt()) < 3 * 0.01**0.5
    near = trained(case).sample_networks(8, generator=seeded(1))
    assert oracle.error(f(case.query), near(case.query)) > 0.01


def test_nothing_of_the_users_is_changed():
    case = by_name("paper mlp")
    module = case.module()
    posterior = ntkgp.fit(module, case.x, case.y, noise_var=0.01, method=ntkgp.TrainedNetworks(rank=2), generator=seeded())
    assert isinstance(posterior, TrainedPosterior)
    before = posterior.predict(case.query).mean
    with unchanged(module):
        posterior.sample_networks(2, generator=seeded(3))
    assert torch.equal(posterior.predict(case.query).mean, before)


def test_what_cannot_be_drawn_is_told():
    case = by_name("paper mlp")
    posterior = trained(case, ntkgp.AcceleratedGD(tol=0.2))
    with pytest.raises(ValueError, match="count"):
        posterior.sample_networks(0)
    with pytest.raises(ValueError, match=r"trained elsewhere.*call sample"):
        replace(posterior, trainer=None).sample_networks(1)
