"""The same table gets the same model from scikit-learn, the command line and the explorer."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from numpy.testing import assert_allclose

from ntkgp.apps.explorer.model import your_data
from ntkgp.apps.explorer.model.csv_table import Table
from ntkgp.apps.explorer.model.state import State
from ntkgp.apps.tables.fitting import NoiseGiven, fit_table
from ntkgp.apps.tables.options import TableOptions
from ntkgp.sklearn import NTKGPRegressor
from tests.doors.cli.commands import SMALL, run

pytestmark = pytest.mark.filterwarnings("ignore::ntkgp.NumericalWarning")

FEATURES, TARGETS = ["size", "age"], ["price", "rent"]
EQUAL = 1e-10  # relative


def houses(count: int, seed: int) -> pl.DataFrame:
    """Two features and two targets, in units far from standardised."""
    rng = np.random.default_rng(seed)
    size, age = rng.uniform(50, 150, count), rng.uniform(0, 30, count)
    price = 1000 + 20 * size - 5 * age * np.sin(size / 20) + rng.normal(0, 30, count)
    return pl.DataFrame({"size": size, "age": age, "price": price, "rent": price / 50 + rng.normal(0, 2, count)})


@pytest.mark.parametrize("targets", [1, 2])
def test_scikit_learn_and_the_command_line(targets: int, tmp_path: Path):
    train, new, names = houses(40, seed=0), houses(7, seed=1), TARGETS[:targets]
    y = train[names].to_numpy()
    model = NTKGPRegressor(width=8, steps=4, starts=1, random_state=0).fit(
        train[FEATURES].to_numpy(), y[:, 0] if targets == 1 else y
    )
    mean, std = model.predict(new[FEATURES].to_numpy(), return_std=True, include_noise=False)

    train.write_csv(tmp_path / "train.csv")
    new.write_csv(tmp_path / "new.csv")
    given = [word for name in names for word in ("--target", name)]
    left_out = [word for name in TARGETS[targets:] for word in ("--ignore", name)]
    fit = run("fit", tmp_path / "train.csv", *given, *left_out, "--seed", 0, "--out", tmp_path / "model", "--json", *SMALL)
    run("predict", tmp_path / "model", tmp_path / "new.csv", "--out", tmp_path / "p.csv", "--quiet")
    found = pl.read_csv(tmp_path / "p.csv")
    prefixes = [""] if targets == 1 else [f"{name}_" for name in names]
    assert_allclose(found[[f"{prefix}mean" for prefix in prefixes]].to_numpy(), mean.reshape(7, targets), rtol=EQUAL)
    assert_allclose(found[[f"{prefix}epistemic_std" for prefix in prefixes]].to_numpy(), std.reshape(7, targets), rtol=EQUAL)
    noise_std = json.loads(fit.stdout)["noise_std"]
    assert_allclose([noise_std[name] for name in names], np.sqrt(np.atleast_1d(model.noise_var_)), rtol=EQUAL)


@pytest.mark.parametrize("normalisation", ["circle", "raw"])
def test_scikit_learn_and_the_explorer(normalisation: str):
    rows = 310  # more than the page tunes on, so that the choice of rows and its seed matter
    train, new, seed = houses(rows, seed=0), houses(7, seed=1)[FEATURES].to_numpy(), 3
    table = Table(tuple(train.columns), tuple(tuple(column.to_list()) for column in train))
    chosen = {"table": table, "target": "price", "inputs": tuple(FEATURES)}
    state = State(width=16, depth=1, sharpness=1.0, seed=seed, normalisation=normalisation, **chosen)
    page = your_data.fit(state)
    p = page.predict(torch.tensor(new))

    X = train[FEATURES].to_numpy(order="c")  # sums over columns in another order round differently
    network = your_data.page_network(state, torch.tensor(X))
    model = NTKGPRegressor(module=network, points=300, random_state=seed).fit(X, train["price"].to_numpy())
    mean, std = model.predict(new, return_std=True, include_noise=False)
    assert_allclose(p.mean.numpy(), mean, rtol=EQUAL)
    assert_allclose(p.std.numpy(), std, rtol=EQUAL)
    assert_allclose(page.noise_std**2, model.noise_var_, rtol=EQUAL)


def test_a_network_that_is_not_tuned_needs_known_noise():
    x, options = torch.linspace(0, 1, 6).unsqueeze(1).double(), TableOptions(module=torch.nn.Linear(1, 1), tune=False)
    with pytest.raises(ValueError, match="tune=False needs known noise"):
        fit_table(x, x[:, 0], options)
    known = NoiseGiven(known=torch.full((1, 1), 0.1).double())
    assert fit_table(x, x[:, 0], options, known).predict(x).mean.shape == (6,)
