"""Exact posteriors of infinite networks, against the dense equations with a kernel that is written down anew."""

import copy
import math
import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor

import ntkgp
from ntkgp.networks import Erf, InputScales
from ntkgp.posterior.method import Method
from ntkgp.problem.operators import NoWeightsError
from tests.support.helpers import seeded
from tests.support.infinite import erf_kernel

VARIANCES = [0.5, 2.0, 3.0]
PRIOR = {"0": 0.5, "2": 2.0, "4": 3.0}
N, M = 30, 7


def network(outputs: int = 1) -> torch.nn.Module:
    return ntkgp.mlp(3, outputs, width=math.inf, activation=Erf())


def kernel(x: Tensor, other: Tensor) -> Tensor:
    return torch.from_numpy(erf_kernel(x.double().numpy(), other.double().numpy(), 2, 3.5, VARIANCES))


def data(outputs: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    g = seeded(5)
    x, new = (torch.randn(count, 3, generator=g, dtype=torch.float64) for count in (N, M))
    y = torch.stack([(x[:, 0] * (k + 1)).sin() for k in range(outputs)], dim=1) + 0.1 * torch.randn(N, outputs, generator=g)
    return x, y if outputs > 1 else y[:, 0], new


def answers(x: Tensor, y: Tensor, noise: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of one output, by the equations."""
    whole = torch.linalg.inv(kernel(x, x) + noise.diag())
    cross = kernel(new, x)
    return cross @ whole @ y, kernel(new, new) - cross @ whole @ cross.T


@pytest.fixture(params=["common noise", "noise per point"])
def fitted(request: pytest.FixtureRequest) -> tuple[ntkgp.posterior.Posterior, Tensor, Tensor, Tensor, Tensor]:
    x, y, new = data()
    noise = (
        torch.linspace(0.01, 0.2, N, dtype=torch.float64)
        if request.param == "noise per point"
        else torch.full((N,), 0.04, dtype=torch.float64)
    )
    given = noise if request.param == "noise per point" else 0.04
    return ntkgp.fit(network(), x, y, noise_var=given, prior_var=PRIOR), x, y, noise, new


def test_mean_variance_and_covariance(fitted: tuple):
    posterior, x, y, noise, new = fitted
    mean, covariance = answers(x, y, noise, new)
    p = posterior.predict(new, noise_var=0.1)
    assert torch.allclose(p.mean, mean, rtol=1e-9, atol=1e-9)
    assert torch.allclose(p.variance, covariance.diagonal(), rtol=1e-9, atol=1e-9)
    assert torch.equal(p.lower, p.variance)
    assert torch.equal(p.upper, p.variance)
    assert torch.allclose(posterior.covariance(new), covariance, rtol=1e-9, atol=1e-9)
    assert torch.allclose(posterior.mean(new), mean, rtol=1e-9, atol=1e-9)
    assert torch.equal(posterior.sharpen(new).variance, p.variance)
    means, joint = posterior.joint(new[:6].unflatten(0, (2, 3)))  # pyright: ignore[reportAttributeAccessIssue]
    assert torch.allclose(joint[1], covariance[3:6, 3:6], rtol=1e-9, atol=1e-9)
    assert torch.allclose(means.flatten(), mean[:6], rtol=1e-9, atol=1e-9)


def test_log_marginal_likelihood_and_leave_one_out(fitted: tuple):
    posterior, x, y, noise, _ = fitted
    matrix = kernel(x, x) + noise.diag()
    true = torch.distributions.MultivariateNormal(torch.zeros(N).double(), matrix).log_prob(y)
    assert abs(posterior.log_marginal_likelihood - float(true)) < 1e-8
    errors, std = posterior.leave_one_out()
    rest = torch.arange(N) != 4
    mean, covariance = answers(x[rest], y[rest], noise[rest], x[4:5])
    assert abs(float(std[4]) - math.sqrt(float(covariance[0, 0] + noise[4]))) < 1e-9
    assert abs(float(errors[4] * std[4] - (y[4] - mean[0]))) < 1e-9


def test_update_is_a_new_fit():
    x, y, new = data()
    posterior = ntkgp.fit(network(), x[:10], y[:10], noise_var=0.04, prior_var=PRIOR)
    for start in range(10, N, 4):
        posterior = posterior.update(x[start : start + 4], y[start : start + 4])
    mean, covariance = answers(x, y, torch.full((N,), 0.04, dtype=torch.float64), new)
    assert torch.allclose(posterior.predict(new).mean, mean, rtol=1e-9, atol=1e-9)
    assert torch.allclose(posterior.covariance(new), covariance, rtol=1e-9, atol=1e-9)


def test_outputs_are_separate_regressions():
    x, y, new = data(2)
    noise = torch.tensor([[0.04, 0.3]], dtype=torch.float64)
    p = ntkgp.fit(network(2), x, y, noise_var=noise, prior_var=PRIOR).predict(new)
    for k in range(2):
        mean, covariance = answers(x, y[:, k], noise[0, k].expand(N), new)
        assert torch.allclose(p.mean[:, k], mean, rtol=1e-9, atol=1e-9)
        assert torch.allclose(p.variance[:, k], covariance.diagonal(), rtol=1e-9, atol=1e-9)


def test_copies_and_files(tmp_path: Path):
    x, y, new = data()
    net = network()
    posterior = ntkgp.fit(net, x, y, noise_var=0.04, prior_var=PRIOR).update(x[:2] + 1, y[:2])
    posterior.save(tmp_path / "p.safetensors")
    expected = posterior.predict(new)
    for again in (ntkgp.load(tmp_path / "p.safetensors", net), copy.deepcopy(posterior), pickle.loads(pickle.dumps(posterior))):
        assert torch.equal(again.predict(new).mean, expected.mean)
        assert torch.equal(again.predict(new).variance, expected.variance)
    other = ntkgp.mlp(3, width=math.inf, activation=Erf(), weight_std=1.1)
    with pytest.raises(ValueError, match=r"'0\.weight_std' of the module has other values"):
        ntkgp.load(tmp_path / "p.safetensors", other)


def test_gradients_in_x():
    x, y, new = data()
    posterior = ntkgp.fit(network(), x, y, noise_var=0.04, prior_var=PRIOR)

    def both(at: Tensor) -> tuple[Tensor, Tensor]:
        p = posterior.predict(at)
        return p.mean, p.variance

    assert torch.autograd.gradcheck(both, new[:3].requires_grad_(), eps=1e-6, atol=1e-6)


def test_a_gradient_at_a_training_point_is_finite():
    """The kernel of ReLU has a kink there."""
    x, y, _ = data()
    posterior = ntkgp.fit(ntkgp.mlp(3, width=math.inf, activation=torch.nn.ReLU()), x, y, noise_var=0.04)
    at = x[:2].clone().requires_grad_()
    p = posterior.predict(at)
    (p.mean.sum() + p.variance.sum()).backward()
    assert at.grad is not None
    assert torch.isfinite(at.grad).all()


def test_drawn_functions_have_the_mean_and_covariance_of_the_posterior():
    """Four standard errors of 300 functions; what the finite networks add is far less."""
    x, y, new = data()
    posterior = ntkgp.fit(network(), x[:8], y[:8], noise_var=0.04, prior_var=PRIOR)
    mean, covariance = answers(x[:8], y[:8], torch.full((8,), 0.04, dtype=torch.float64), new)
    values = posterior.sample(300, generator=seeded())(new)
    std = covariance.diagonal().sqrt()
    assert ((values.mean(dim=0) - mean).abs() < 4 * std / 300**0.5).all()
    assert ((values.T.cov() - covariance).abs() < 4 * (2 / 300) ** 0.5 * torch.outer(std, std)).all()


def test_drawn_functions_are_functions():
    x, y, new = data(2)
    f = ntkgp.fit(network(2), x, y, noise_var=0.04, prior_mean=lambda x: x[:, :2]).sample(3, generator=seeded())
    values = f(new)
    assert values.shape == (3, M, 2)
    assert torch.equal(values, f(new))
    assert torch.allclose(f[1](new)[0], values[1], rtol=1e-9, atol=1e-9)
    assert torch.allclose(f(new[2:4]), values[:, 2:4], rtol=1e-9, atol=1e-9)
    for again in (copy.deepcopy(f[:2]), pickle.loads(pickle.dumps(ntkgp.fit(network(2), x, y, noise_var=0.04).sample(2)))):
        assert torch.isfinite(again(new)).all()
    at = new[:2].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda at: f[:1](at), [at], eps=1e-6, atol=1e-5)


def test_without_data_it_is_the_prior():
    x, _, new = data()
    p = ntkgp.fit(network(), x, torch.zeros(N), noise_var=1e9, prior_var=PRIOR).predict(new)
    assert torch.allclose(p.variance.double(), kernel(new, new).diagonal(), rtol=1e-6)


def test_the_words_for_it():
    x, y, _ = data()
    posterior = ntkgp.fit(torch.nn.Sequential(InputScales(torch.ones(3)), network()), x, y, noise_var=0.04)
    assert "infinite width" in repr(posterior)
    assert "a network of infinite width has a kernel and no weights" in posterior.choice


@pytest.mark.parametrize("method", [ntkgp.LowRank(), ntkgp.TrainedNetworks(), ntkgp.Exact("weights")])
def test_methods_that_need_weights_say_so(method: Method):
    x, y, _ = data()
    with pytest.raises(ValueError, match="needs the weights of a network, and a network of infinite width has none"):
        ntkgp.fit(network(), x, y, noise_var=0.04, method=method)


def test_functions_that_need_weights_say_so():
    x, y, _ = data()
    with pytest.raises(ValueError, match="prior_mean=network_mean needs the outputs of the network"):
        ntkgp.fit(network(), x, y, noise_var=0.04, prior_mean=ntkgp.network_mean)
    for work in (
        lambda: ntkgp.train_posterior_mean(network(), x, y, noise_var=0.04),
        lambda: ntkgp.train_posterior_covariance(network(), x, noise_var=0.04, rank=2),
        lambda: ntkgp.partial_svd(network(), x, 2),
    ):
        with pytest.raises(NoWeightsError, match="a network of infinite width has none"):
            work()
