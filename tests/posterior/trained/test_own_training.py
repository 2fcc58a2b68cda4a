"""A posterior from networks trained elsewhere: shifted targets, the anchor penalty, an ordinary torch loop."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import ntkgp
from tests.support import oracle
from tests.support.cases import by_name
from tests.support.oracle import error


def random_features(out_features: int = 1) -> nn.Module:
    """Linear in its trainable weights: what training finds is the analytic posterior itself, not close to it."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, out_features)).double()
    module[0].requires_grad_(False)
    return module


def minimise(module: nn.Module, loss: Callable[[nn.Module], Tensor]) -> nn.Module:
    """An ordinary loop over an ordinary optimiser, from a copy of the module."""
    network = copy.deepcopy(module)
    optimiser = torch.optim.LBFGS(network.parameters(), lr=1, max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-16)

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss(network)
        value.backward()
        return value

    for _ in range(5):
        optimiser.step(closure)  # pyright: ignore[reportArgumentType]
    return network


def train(plan: ntkgp.posterior.TrainingPlan, module: nn.Module, x: Tensor, prior_var: float = 1.0) -> list[nn.Module]:
    def loss_on(target: Tensor) -> Callable[[nn.Module], Tensor]:
        def loss(network: nn.Module) -> Tensor:
            fit = (plan.weights * (network(x).view_as(target) - target).square()).sum() / len(x)
            return fit + plan.beta / prior_var * ntkgp.anchor_penalty(network, module)

        return loss

    return [minimise(module, loss_on(target)) for target in plan.targets]


SETTINGS = {
    "one output": {"C": None, "noise_var": 0.05},
    "two outputs": {"C": 2, "noise_var": 0.05},
    "noise per point": {"C": None, "noise_var": torch.linspace(0.02, 0.3, 12).double()},
    "noise per output": {"C": 2, "noise_var": torch.linspace(0.02, 0.3, 24).double().view(12, 2)},
    "prior variance": {"C": None, "noise_var": 0.05, "prior_var": 2.5},
    "network as prior mean": {"C": 2, "noise_var": 0.05, "prior_mean": ntkgp.network_mean},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_an_ordinary_loop_finds_the_posterior(name: str):
    """With K full the covariance is exact, too."""
    case, setting = by_name("paper mlp"), SETTINGS[name]
    C = setting["C"]
    y = case.y if C is None else torch.stack([case.y, case.y.cos()], dim=1)
    options = {key: value for key, value in setting.items() if key != "C"}
    module, prior_var = random_features(C or 1), float(options.get("prior_var", 1.0))
    rank = 12 * (C or 1)
    plan = ntkgp.plan_training(module, case.x, y, rank=rank, **options)
    assert plan.targets.shape == (1 + rank, *y.shape)
    assert plan.weights.shape == y.shape
    posterior = plan.posterior(train(plan, module, case.x, prior_var))
    means = None
    if "prior_mean" in options:
        means = (oracle.outputs(module, case.x), oracle.outputs(module, case.query))
    truth = oracle.pose(module, case.x, y, case.query, options["noise_var"], prior_var, means)
    p = posterior.predict(case.query)
    assert error(p.mean.flatten(), truth.mean) <= 1e-5
    assert error(posterior.raw_covariance(case.query), truth.covariance) <= 1e-5
    assert error(p.variance.flatten(), truth.variance) <= 1e-5


def test_a_real_network_comes_close():
    """A wide network, plain SGD with momentum, no scaling of targets: close, as far as its width allows."""
    g = torch.Generator().manual_seed(0)
    x = torch.linspace(-1, 1, 6).double().unsqueeze(1)
    y, query = (2 * x[:, 0]).sin(), torch.linspace(-1.5, 1.5, 9).double().unsqueeze(1)
    module = ntkgp.mlp(1, width=1024, depth=1, activation=nn.Softplus(beta=2), generator=g).double()
    plan = ntkgp.plan_training(module, x, y, noise_var=0.1, rank=5)
    lr = 0.4 * len(x) / float(torch.linalg.eigvalsh(ntkgp.kernel(module, x))[-1] + 0.1)
    networks = []
    for target in plan.targets:
        network = copy.deepcopy(module)
        optimiser = torch.optim.SGD(network.parameters(), lr=lr, momentum=0.9, nesterov=True)
        for _ in range(300):
            optimiser.zero_grad()
            loss = (network(x)[:, 0] - target).square().mean() + plan.beta * ntkgp.anchor_penalty(network, module)
            loss.backward()
            optimiser.step()
        networks.append(network)
    p = plan.posterior(networks).predict(query)
    truth = oracle.pose(module, x, y, query, 0.1)
    assert error(p.mean, truth.mean) <= 0.05
    assert error(p.variance, truth.our_bound(5).diagonal()) <= 0.05


def test_targets_are_shifted():
    """ŷ = y + f(x; θ0) for zero prior mean, y itself when the network is the prior mean; then U, then the tail."""
    case = by_name("paper mlp")
    module, f0 = case.module(), oracle.outputs(case.module(), case.x)
    plan = ntkgp.plan_training(
        module, case.x, case.y, noise_var=0.01, rank=2, tail=3, generator=torch.Generator().manual_seed(0)
    )
    assert plan.targets.shape == (6, 12)
    assert plan.beta == pytest.approx(0.01 / 12)
    assert error(plan.targets[0], case.y + f0) <= 1e-14
    u = ntkgp.partial_svd(module, case.x, 2).u
    assert error((plan.targets[1:3] - f0).abs(), u.T.abs()) <= 1e-8
    lemma1 = ntkgp.plan_training(module, case.x, case.y, noise_var=0.01, rank=2, prior_mean=ntkgp.network_mean)
    assert error(lemma1.targets[0], case.y) <= 1e-14


def test_anchor_penalty():
    module = random_features()
    moved = copy.deepcopy(module)
    with torch.no_grad():
        moved[2].get_parameter("weight").add_(0.5)  # pyright: ignore
    penalty = ntkgp.anchor_penalty(moved, module)
    assert penalty.item() == pytest.approx(20 * 0.25)
    penalty.backward()
    gradient = moved[2].get_parameter("weight").grad  # pyright: ignore
    assert gradient is not None
    torch.testing.assert_close(gradient, torch.full((1, 20), 1.0).double())
    assert all(p.grad is None for p in module.parameters())
    frozen_anchor = copy.deepcopy(module).requires_grad_(False)
    assert ntkgp.anchor_penalty(moved, frozen_anchor).item() == pytest.approx(20 * 0.25)


def test_float32_networks():
    case = by_name("float32")
    module = case.module()
    plan = ntkgp.plan_training(module, case.x, case.y, noise_var=0.1, rank=2)
    assert plan.targets.dtype == torch.float32
    p = plan.posterior([copy.deepcopy(module) for _ in plan.targets]).predict(case.query)
    assert p.mean.dtype == torch.float32
    assert p.mean.abs().max() <= 1e-6


def test_wrong_networks_are_refused():
    case = by_name("paper mlp")
    module = case.module()
    plan = ntkgp.plan_training(module, case.x, case.y, noise_var=0.1, rank=2)
    with pytest.raises(ValueError, match="expected 3 trained networks, one per target, got 2"):
        plan.posterior([module, module])
    other = ntkgp.mlp(2, width=5).double()
    with pytest.raises(ValueError, match=r"network 1 is not a copy of the module: parameter '0\.weight'"):
        plan.posterior([module, other, module])
    with pytest.raises(ValueError, match=r"network is not a copy of anchor: parameter '0\.weight'"):
        ntkgp.anchor_penalty(other, module)
