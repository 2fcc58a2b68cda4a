"""Trained networks that have seen more reach what a fresh fit reaches, in fewer steps."""

import pytest
import torch

import ntkgp
from ntkgp.posterior.trained.posterior import TrainedPosterior
from tests.support.cases import by_name, reference
from tests.support.helpers import seeded
from tests.support.oracle import error
from tests.support.updates import grid, in_steps, network


@pytest.mark.parametrize("name", ["paper mlp", "two outputs", "noise per point, two outputs", "function as prior mean"])
def test_trained_networks_reach_what_a_fresh_fit_reaches(name: str):
    case, trainer = by_name(name), ntkgp.AcceleratedGD(tol=1e-4, signal=1e-5)
    method = ntkgp.TrainedNetworks(rank=4, trainer=trainer)
    posterior, fresh, truth = in_steps(case, method), case.fit(method, generator=seeded()), reference(case)
    assert isinstance(posterior, TrainedPosterior)
    a, b = posterior.predict(case.query), fresh.predict(case.query)
    assert all(posterior.predictors.trained.converged)
    assert error(a.mean, b.mean) <= 1e-3
    assert error(a.mean.flatten(), truth.mean) <= 1e-3
    assert error(a.variance, b.variance) <= 1e-3
    slack = 1e-9 * truth.prior.diagonal()
    assert bool((a.lower.flatten() <= truth.variance + slack).all())
    assert bool((truth.variance <= a.upper.flatten() + slack).all())


@pytest.mark.parametrize(
    "covariance", [ntkgp.posterior.TightCovariance(), ntkgp.posterior.PaperCovariance()], ids=["ours", "paper"]
)
def test_training_goes_on_from_where_it_was(covariance: ntkgp.posterior.TightCovariance | ntkgp.posterior.PaperCovariance):
    (x, y), net = grid(33), network()
    method = ntkgp.TrainedNetworks(rank=4, tail=3, trainer=ntkgp.AcceleratedGD(tol=1e-3), covariance=covariance)
    posterior = ntkgp.fit(net, x[:32], y[:32], noise_var=0.1, method=method, generator=seeded())
    more = posterior.update(x[32:], y[32:], generator=seeded(1))
    fresh = ntkgp.fit(net, x, y, noise_var=0.1, method=method, generator=seeded())
    assert isinstance(posterior, TrainedPosterior)
    assert isinstance(more, TrainedPosterior)
    assert isinstance(fresh, TrainedPosterior)
    assert torch.equal(more.plan.noise[:32], posterior.plan.noise)
    assert sum(more.predictors.trained.steps) < 0.8 * sum(fresh.predictors.trained.steps)


def test_networks_trained_elsewhere_cannot_go_on():
    x, y = grid(6)
    plan = ntkgp.plan_training(network(), x, y, noise_var=0.1, rank=1)
    with pytest.raises(ValueError, match=r"trained elsewhere.*plan_training"):
        plan.posterior([network(), network()]).update(x[:1], y[:1])
