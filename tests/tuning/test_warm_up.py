"""warm_up() and tune_table(): what is trained, what is chosen, and that the user's modules stay as they were."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkgp
from tests.support.helpers import seeded
from tests.support.unchanged import unchanged


def data(points: int = 90, noise: float = 0.05, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(points, 2, generator=g)
    return x, torch.sin(2 * x[:, 0]) * x[:, 1] + noise * torch.randn(points, generator=g)


def network(seed: int = 0, outputs: int = 1) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(2, 24), nn.SiLU(), nn.Linear(24, 24), nn.SiLU(), nn.Linear(24, outputs))


def test_the_choice_is_the_best_held_out_density():
    x, y = data()
    warm = ntkgp.warm_up(network(), x, y, steps=(0, 20, 200), generator=seeded())
    assert isinstance(warm, ntkgp.tuning.WarmUp)
    scores = warm.scores
    assert set(scores) == {0, 20, 200}
    assert warm.steps == max(scores, key=lambda k: scores[k])
    assert warm.steps > 0  # features help here


def test_noise_without_signal_is_not_learned():
    """With nothing to learn, long training over-fits, and the choice sees it."""
    g = seeded(3)
    x, y = torch.randn(60, 2, generator=g), torch.randn(60, generator=g)
    warm = ntkgp.warm_up(network(), x, y, steps=(0, 3000), lr=1e-2, generator=g)
    assert isinstance(warm, ntkgp.tuning.WarmUp)
    assert warm.steps == 0


def test_zero_steps_is_the_network_itself():
    x, y = data(20)
    net = network()
    warm = ntkgp.warm_up(net, x, y, steps=[0]).module
    assert warm is not net
    assert torch.equal(warm(x), net(x))


def test_features_beat_initial_weights_on_new_points():
    x, y = data(160)
    new_x, new_y = data(200, seed=1)
    cold = ntkgp.tune(network(), x, y, input_scales=False).fit(x, y)
    trained = ntkgp.warm_up(network(), x, y, steps=[300], generator=seeded()).module
    warm = ntkgp.tune(trained, x, y, input_scales=False).fit(x, y)
    before, after = (
        ntkgp.diagnostics.evaluate(cold.predict(new_x), new_y),
        ntkgp.diagnostics.evaluate(warm.predict(new_x), new_y),
    )
    assert after.nll < before.nll
    assert after.rmse < 0.6 * before.rmse


def test_modules_and_global_randomness_are_left_alone():
    x, y = data(30)
    nets = [network(k) for k in range(3)]
    with unchanged(*nets):
        a = ntkgp.warm_up(nets, x, y, steps=(0, 5), generator=seeded(2)).module
        b = ntkgp.warm_up(nets, x, y, steps=(0, 5), generator=seeded(2)).module
    assert torch.equal(a(x), b(x))
    assert isinstance(a, ntkgp.networks.SumOfNetworks)


def test_stacked_training_is_training_each_alone():
    """Copies trained as one stack, with all of the data, take the steps each would take on the same minibatches."""
    x, y = data(16)
    nets = [network(k) for k in range(2)]
    together = ntkgp.warm_up(nets, x, y, steps=[7], share=1.0, batch_size=16, generator=seeded(4)).module
    assert isinstance(together, ntkgp.networks.SumOfNetworks)
    apart = []
    for net, trained in zip(nets, together.networks, strict=True):
        # The same minibatches, taken from the order in which the generator gives them.
        g = seeded(4)
        torch.randperm(16, generator=g)
        parts = [torch.randperm(16, generator=g) for _ in nets]
        index = len(apart)
        copied, target = copy.deepcopy(net), (y - y.mean()) / y.std(correction=0)
        optimiser = torch.optim.AdamW(copied.parameters(), lr=3e-3, weight_decay=1e-2)
        order = torch.randperm(16, generator=seeded(4))
        for _ in range(7):
            rows = [part[torch.randint(16, (16,), generator=g)] for part in parts][index]
            rows = order[rows]
            optimiser.zero_grad()
            (copied(x[rows])[:, 0] - target[rows]).square().mean().backward()
            optimiser.step()
        apart.append(copied)
        assert torch.allclose(copied(x), trained(x), atol=1e-5)


def test_own_training_loop():
    x, y = data(30)
    calls = []

    def train(module: nn.Module, x: Tensor, y: Tensor, steps: int) -> None:
        calls.append((len(x), steps))
        with torch.no_grad():
            for p in module.parameters():
                p.mul_(1 + 0.01 * steps)

    net = network()
    warm = ntkgp.warm_up(net, x, y, steps=(0, 1, 3), train=train, generator=seeded())
    assert calls[:2] == [(25, 1), (25, 2)]  # on the points that were not held out: to one step, then to three
    assert isinstance(warm, ntkgp.tuning.WarmUp)
    assert len(calls) == 2 + (warm.steps > 0)


def test_modules_that_cannot_be_stacked():
    x, y = data(20)
    nets = [nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1)).eval() for _ in range(2)]
    warm = ntkgp.warm_up(nets, x, y, steps=[3], generator=seeded()).module
    assert not any(part.training for part in warm.modules())


def test_several_outputs():
    x, y = data(40)
    warm = ntkgp.warm_up(network(outputs=2), x, torch.stack([y, 1000 * y], dim=1), steps=(0, 30), generator=seeded())
    assert warm.module(x).shape == (40, 2)


@pytest.mark.parametrize(("options", "message"), [
    ({"steps": []}, "at least one candidate"),
    ({"steps": [-1]}, "steps must be at least 0"),
    ({"lr": 0.0}, "lr of warm_up must be positive"),
    ({"share": 2.0}, "share must be at most 1"),
    ({"holdout": 1.0}, "holdout below 1"),
    ({"lr": 1e6, "steps": [50]}, "training diverged"),
])  # fmt: skip
def test_bad_options_are_named(options: dict, message: str):
    x, y = data(20)
    with pytest.raises(ValueError, match=message):
        ntkgp.warm_up(network(), x * 1e6, y, **options)


@pytest.mark.parametrize("outputs", [None, 2])
def test_table(outputs: int | None):
    x, y = data(70, noise=0.1)
    y = y if outputs is None else torch.stack([y, -y], dim=1)
    small: dict[str, Any] = {"width": 32, "local_width": 64, "warm_networks": 2, "warm_steps": [50], "steps": 20}
    tuned = ntkgp.tune_table(x, y, generator=seeded(), **small)
    again = ntkgp.tune_table(x, y, generator=seeded(), **small)
    assert tuned.log_marginal_likelihood == again.log_marginal_likelihood
    assert tuned.leave_one_out <= 1 + 1e-9
    new_x, new_y = data(100, noise=0.1, seed=5)
    p = tuned.fit(x, y).predict(new_x)
    new_y = new_y if outputs is None else torch.stack([new_y, -new_y], dim=1)
    assert ntkgp.diagnostics.evaluate(p, new_y).rmse < 0.6 * float(new_y.std())
    assert 0.8 < ntkgp.diagnostics.evaluate(p, new_y).coverage() <= 1.0


def test_table_tells_a_function_of_copies_from_noise():
    """Points that come in pairs with the same target: the local network takes what the smooth one cannot, not the noise."""
    g = seeded(1)
    x = torch.randn(40, 3, generator=g).repeat(2, 1)
    y = torch.randn(40, generator=g).repeat(2)
    small: dict[str, Any] = {"width": 32, "local_width": 512, "warm_networks": 0, "steps": 60}
    with pytest.warns(ntkgp.NumericalWarning, match="noise_var sits at the lower edge"):
        tuned = ntkgp.tune_table(x, y, generator=g, **small)
    fresh = torch.randn(50, 3, generator=g)
    p, copies = tuned.fit(x, y).predict(fresh), tuned.fit(x, y).predict(x[:5])
    assert copies.total_std.max() < 0.1
    assert p.total_std.mean() > 0.6
