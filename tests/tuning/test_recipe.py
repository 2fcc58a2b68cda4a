"""The recipe for tables: a network of infinite width, its hyper-parameters, and what counts as noise."""

import json
import math

import pytest
import torch
from torch import Tensor

import ntkgp
from ntkgp.apps.tables.options import INFINITE, TableOptions
from ntkgp.networks.description import describe, rebuild
from ntkgp.networks.infinite.layers import is_infinite
from ntkgp.tuning.recipe.table import LAYERS, infinite_table
from ntkgp.tuning.subsets import copies_of_rows
from tests.support.helpers import seeded


def friedman(points: int, noise: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Standardised inputs and targets of a known function of five of eight inputs, and the function itself."""
    g = seeded(seed)
    x = torch.rand(points, 8, generator=g, dtype=torch.float64)
    f = 10 * (math.pi * x[:, 0] * x[:, 1]).sin() + 20 * (x[:, 2] - 0.5).square() + 10 * x[:, 3] + 5 * x[:, 4]
    y = f + noise * torch.randn(points, generator=g, dtype=torch.float64)
    return (x - 0.5) * math.sqrt(12), (y - y.mean()) / y.std(), (f - y.mean()) / y.std()


def test_noise_is_called_noise():
    """With noise of a known size, the learned noise has that size, and the epistemic band covers the function."""
    x, y, f = friedman(700, 1.0, 0)
    tuned = ntkgp.tune_table(x[:300], y[:300], generator=seeded())
    true = float((y - f).std())
    assert 0.85 * true < float(torch.as_tensor(tuned.noise_var)) ** 0.5 < 1.15 * true
    p = tuned.fit(x[:300], y[:300]).predict(x[300:])
    covered = ((f[300:] - p.mean).abs() < 1.96 * p.std).double().mean()
    assert 0.88 < covered <= 0.995
    within = ((y[300:] - p.mean).abs() < 1.96 * p.total_std).double().mean()
    assert 0.91 < within < 0.99


@pytest.mark.parametrize("outputs", [None, 2])
def test_the_same_seed_gives_the_same_model(outputs: int | None):
    x, y, f = friedman(150, 0.5, 1)
    y = y if outputs is None else torch.stack([y, -y], dim=1)
    tuned, again = (ntkgp.tune_table(x[:90], y[:90], generator=seeded(), steps=40) for _ in range(2))
    assert tuned.log_marginal_likelihood == again.log_marginal_likelihood
    assert tuned.leave_one_out <= 1 + 1e-9
    assert is_infinite(tuned.module)
    p = tuned.fit(x[:90], y[:90]).predict(x[90:])
    mean = p.mean if outputs is None else p.mean[:, 1].neg()
    assert (mean - f[90:]).square().mean().sqrt() < 0.5 * f.std()


def test_the_rough_part_stays_small_where_it_is_not_needed():
    """Its centre is a twentieth of an equal share: more would take noise for structure, and a random walk still shows."""
    assert all((share < 0.1) == name.startswith("networks.2") for name, share in LAYERS.items())
    g = seeded(3)
    x = torch.rand(250, 1, generator=g, dtype=torch.float64) * 4 - 2
    smooth = torch.sin(2 * x[:, 0]) + 0.3 * torch.randn(250, generator=g, dtype=torch.float64)
    order, steps = x[:, 0].argsort(), torch.randn(250, generator=g, dtype=torch.float64)
    walk = torch.empty_like(smooth)
    walk[order] = steps.cumsum(dim=0) / 8
    share = {}
    for name, y in (("smooth", smooth), ("walk", walk)):
        tuned = ntkgp.tune_table(x, y, generator=seeded())
        assert isinstance(tuned.prior_var, dict)
        whole = ntkgp.fit(tuned.module, x, y, noise_var=1.0, prior_var=tuned.prior_var, parameters=tuned.parameters)
        quiet = {layer: v * (1e-12 if layer.startswith("networks.2") else 1) for layer, v in tuned.prior_var.items()}
        rest = ntkgp.fit(tuned.module, x, y, noise_var=1.0, prior_var=quiet, parameters=tuned.parameters)
        total, other = (one.problem.operators.prior_variance for one in (whole, rest))  # pyright: ignore[reportAttributeAccessIssue]
        share[name] = 1 - float(other.mean() / total.mean())
    assert share["smooth"] < 0.05 < 0.15 < share["walk"]


def test_copies_are_no_observations():
    """Rows that repeat inputs and target once each: the noise is that of the other rows."""
    x, y, _ = friedman(120, 1.0, 2)
    once = ntkgp.tune_table(x, y, generator=seeded(), steps=30)
    twice = ntkgp.tune_table(x.repeat(3, 1), y.repeat(3), generator=seeded(), steps=30)
    assert twice.noise_var == pytest.approx(once.noise_var, rel=1e-9)
    assert twice.points == 120


def test_which_rows_are_copies():
    x = torch.tensor([[0.0, 1.0], [2.0, 3.0], [0.0, 1.0], [4.0, 5.0], [2.0, 3.0], [0.0, 1.0]])
    same = torch.tensor([1.0, 2.0, 1.0, 3.0, 2.0, 1.0])
    assert copies_of_rows(x, same).tolist() == [False, False, True, False, True, True]
    assert copies_of_rows(x, same.unsqueeze(1).repeat(1, 2)).tolist() == [False, False, True, False, True, True]
    assert not copies_of_rows(x[[0, 1, 3]], same[[0, 1, 3]]).any()
    # One pair differs: then these are repeated measurements, and rows that agree agree by chance.
    assert not copies_of_rows(x, torch.tensor([1.0, 2.0, 1.0, 3.0, 2.5, 1.0])).any()
    # One pair of many differs: a wrong entry among copies. It counts, the copies do not.
    many = torch.arange(100.0).unsqueeze(1).repeat(2, 1)
    targets = torch.arange(200.0) % 100
    targets[150] = -1
    found = copies_of_rows(many, targets)
    assert found.sum() == 99
    assert not found[150]
    assert not found[:100].any()


def test_known_noise_per_point_is_kept_with_its_points():
    x, y, _ = friedman(60, 0.5, 4)
    noise = torch.linspace(0.01, 0.3, 60, dtype=torch.float64)
    tuned = ntkgp.tune_table(x.repeat(2, 1), y.repeat(2), noise_var=noise.repeat(2), generator=seeded(), steps=10)
    assert tuned.points == 120
    assert isinstance(tuned.noise_var, Tensor)
    assert torch.equal(tuned.noise_var, noise.repeat(2))


def test_the_network_as_plain_data():
    """As model folders describe it."""
    net = infinite_table(3, 2)
    again = rebuild(
        json.loads(json.dumps(describe(net), allow_nan=False)), most=sum(v.numel() for v in net.state_dict().values())
    )
    again.load_state_dict(net.state_dict())
    x = torch.randn(5, 3, generator=seeded())
    assert torch.equal(ntkgp.kernel(again, x), ntkgp.kernel(net, x))
    with pytest.raises(ValueError, match="asks for"):
        rebuild(describe(net), most=3)


@pytest.mark.parametrize(("options", "rows", "infinite"), [
    (TableOptions(), 20_000, True),
    (TableOptions(), 20_001, False),
    (TableOptions(width=math.inf), 30_000, True),
    (TableOptions(width=32), 100, False),
    (TableOptions(rank=4), 100, False),
    (TableOptions(method=ntkgp.LowRank()), 100, False),
    (TableOptions(method=ntkgp.Exact("weights")), 100, False),
    (TableOptions(method=ntkgp.Exact()), 100, True),
    (TableOptions(module=torch.nn.Linear(1, 1)), 100, False),
])  # fmt: skip
def test_which_tables_have_a_network_of_infinite_width(options: TableOptions, rows: int, infinite: bool):
    assert options.is_infinite(rows) == infinite
    assert (options.size(rows) == INFINITE) == infinite


@pytest.mark.filterwarnings("ignore:noise_var sits at:ntkgp.NumericalWarning")
@pytest.mark.parametrize(("x", "y"), [
    ([[1.0, 2.0]], [0.5]),
    ([[0.0], [1.0]], [0.0, 0.0]),
    ([[0.0], [0.0], [1.0]], [1.0, 1.0, -1.0]),
    ([[0.0], [0.0], [1.0]], [1.0, 0.0, -1.0]),
    ([[0.0], [0.0]], [1.0, -1.0]),
    ([[1e6], [-1e6], [0.0]], [1.0, 2.0, 3.0]),
], ids=["one point", "zeros", "copies", "replicates", "one input", "far apart"])  # fmt: skip
def test_odd_tables(x: list, y: list):
    inputs, targets = torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64)
    for columns in (targets, targets.unsqueeze(1), torch.stack([targets, -targets], dim=1)):
        p = ntkgp.tune_table(inputs, columns, generator=seeded(), steps=10).fit(inputs, columns).predict(inputs + 0.1)
        assert p.mean.shape == columns.shape
        assert bool(torch.isfinite(p.mean).all() and torch.isfinite(p.variance).all() and (p.variance >= 0).all())
        assert float(torch.as_tensor(p.noise_var).min()) > 0
