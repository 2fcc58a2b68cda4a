"""A network of infinite width behind every door: answers of the dense equations, or a sentence that it has no weights."""

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor

import ntkgp
from ntkgp.bandits import UCB, Bandit, Thompson
from ntkgp.networks import Erf
from ntkgp.sklearn import NTKGPRegressor
from tests.doors.cli.commands import run
from tests.support.helpers import seeded
from tests.support.infinite import erf_kernel

botorch = pytest.importorskip("botorch")


def network() -> torch.nn.Sequential:
    return ntkgp.mlp(2, width=math.inf, activation=Erf())


def kernel(x: Tensor, other: Tensor) -> Tensor:
    return torch.from_numpy(erf_kernel(x.numpy(), other.numpy(), 2, 3.5, [1.0, 1.0, 1.0]))


def data(points: int = 25) -> tuple[Tensor, Tensor]:
    g = seeded()
    x = torch.rand(points, 2, generator=g, dtype=torch.float64)
    return x, torch.sin(4 * x[:, 0]) + x[:, 1] + 0.1 * torch.randn(points, generator=g, dtype=torch.float64)


def answers(x: Tensor, y: Tensor, noise: float, new: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.linalg.solve(kernel(x, x) + noise * torch.eye(len(x)), kernel(x, new)).T
    return weights @ y, kernel(new, new) - weights @ kernel(x, new)


def test_select_takes_what_reduces_the_variance_most():
    x, y = data()
    pool = torch.rand(30, 2, generator=seeded(1), dtype=torch.float64) * 2
    posterior = ntkgp.fit(network(), x, y, noise_var=0.01)
    chosen = ntkgp.select(posterior, pool, 3)
    covariance = answers(x, y, 0.01, pool)[1]
    expected = []
    for _ in range(3):  # greedy: each time the point whose observation reduces the sum of variances most
        best = int((covariance.square().sum(dim=0) / (covariance.diagonal() + 0.01)).argmax())
        expected.append(best)
        column = covariance[:, best]
        covariance = covariance - torch.outer(column, column) / (column[best] + 0.01)
    assert chosen.tolist() == expected


def test_botorch():
    from botorch.acquisition import LogExpectedImprovement
    from botorch.optim import optimize_acqf

    from ntkgp.botorch import NTKGPModel

    x, y = data()
    tuned = ntkgp.tuning.Tuned(network(), 0.01, 1.0, 0.0, 0.0, len(x), 1.0)
    model = NTKGPModel(x, y.unsqueeze(1), module=tuned, outcome_transform=None)
    new = torch.rand(4, 3, 2, generator=seeded(1), dtype=torch.float64)
    p = model.posterior(new)
    for k in range(4):
        mean, covariance = answers(x, y, 0.01, new[k])
        assert torch.allclose(p.mean[k, :, 0], mean, atol=1e-8)
        assert torch.allclose(p.variance[k, :, 0], covariance.diagonal(), atol=1e-8)
    more = model.condition_on_observations(new[0, :1], torch.ones(1, 1).double(), noise=torch.full((1, 1), 0.01).double())
    mean, _ = answers(torch.cat([x, new[0, :1]]), torch.cat([y, torch.ones(1)]), 0.01, new[1])
    assert torch.allclose(more.posterior(new[1]).mean[:, 0], mean, atol=1e-8)
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    found, _ = optimize_acqf(
        LogExpectedImprovement(model, best_f=y.max() - 1), bounds, q=1, num_restarts=1, raw_samples=8, options={"maxiter": 10}
    )
    assert found.shape == (1, 2)
    assert bool(((found >= 0) & (found <= 1)).all())


@pytest.mark.parametrize("explore", [UCB(4.0), Thompson()], ids=["UCB", "Thompson"])
def test_bandits(explore: UCB | Thompson):
    bandit = Bandit([network(), network()], explore, noise_var=0.05, generator=seeded())
    g, played = seeded(2), list[int]()
    for _ in range(40):
        context = torch.rand(1, 2, generator=g, dtype=torch.float64)
        arm = int(bandit.choose(context))
        played.append(arm)
        bandit.observe(context, torch.tensor([arm]), torch.tensor([1.0 if arm else -1.0], dtype=torch.float64))
    assert np.mean(played[20:]) > 0.8


def test_a_given_network_in_scikit_learn():
    x, y = data(60)
    model = NTKGPRegressor(network(), random_state=0, steps=20, starts=1).fit(x.numpy(), y.numpy())
    mean, std = model.predict(x[:5].numpy(), return_std=True)
    assert np.abs(mean - y[:5].numpy()).max() < 0.4
    assert np.all(std > 0)
    with pytest.raises(ValueError, match="LowRank needs the weights of a network, and a network of infinite width has none"):
        NTKGPRegressor(network(), method=ntkgp.LowRank(rank=2), steps=2).fit(x.numpy(), y.numpy())


def test_the_default_of_the_command_line(tmp_path: Path):
    """`ntkgp fit` without options, and the same model in scikit-learn."""
    x, y = data(60)
    pl.DataFrame({"a": x[:, 0].numpy(), "b": x[:, 1].numpy(), "y": y.numpy()}).write_csv(tmp_path / "t.csv")
    said = run("fit", tmp_path / "t.csv", "--target", "y", "--out", tmp_path / "model").stdout
    assert "a network of infinite width" in said
    assert "mean squared error of rows in five folds" in said  # not that of leave-one-out, which is small after widening
    run("predict", tmp_path / "model", tmp_path / "t.csv", "--out", tmp_path / "p.csv")
    model = NTKGPRegressor(random_state=0).fit(x.numpy(), y.numpy())
    mean, std = model.predict(x.numpy(), return_std=True)
    out = pl.read_csv(tmp_path / "p.csv")
    np.testing.assert_allclose(out["mean"], mean, rtol=1e-9)
    np.testing.assert_allclose(out["total_std"], std, rtol=1e-9)
