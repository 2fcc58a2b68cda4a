"""Cross-validation with hyper-parameters tuned anew in each fold."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import ntkgp
from ntkgp._system.progress import progress_bar
from ntkgp.networks import Erf, InputScales
from ntkgp.tuning.recipe import cross_validation
from ntkgp.tuning.recipe.cross_validation import FOLDS, cross_validated
from ntkgp.tuning.search import Search, SearchOptions
from tests.support.helpers import seeded
from tests.support.infinite import erf_kernel

OPTIONS = SearchOptions(True, False, "shared", "shared", None, None, 1, 30, 1.0)


def network() -> nn.Sequential:
    return nn.Sequential(InputScales(torch.ones(2)), ntkgp.mlp(2, width=math.inf, activation=Erf())).double()


def data(points: int = 33) -> tuple[Tensor, Tensor]:
    g = seeded(2)
    x = torch.randn(points, 2, generator=g, dtype=torch.float64)
    return x, torch.sin(2 * x[:, 0]) + 0.2 * torch.randn(points, generator=g, dtype=torch.float64)


def bar():
    return progress_bar(False, total=1, desc="")


def test_folds_are_predicted_from_the_others(monkeypatch: pytest.MonkeyPatch):
    """With fixed hyper-parameters the error is that of the dense equations, point by point."""
    x, y = data()
    tuned = Search(network(), x, y, OPTIONS, bar()).run()
    asked: list[Tensor] = []

    def fixed(search: Search, near: ntkgp.tuning.Tuned, steps: int) -> ntkgp.tuning.Tuned:
        asked.append(search.x)
        return near

    monkeypatch.setattr(Search, "near", fixed)
    order = torch.randperm(len(x), generator=seeded())
    found = cross_validated(network(), x, y, OPTIONS, tuned, order, bar())
    assert [len(part) for part in asked] == [26, 26, 26, 27, 27]
    scale = tuned.input_scales["0"]
    z, v = (x * scale).numpy(), float(tuned.prior_var)  # pyright: ignore[reportArgumentType]
    kernel = torch.from_numpy(erf_kernel(z, z, 2, 3.5, [v, v, v]))
    errors = []
    for k in range(FOLDS):
        held = order[k::FOLDS]
        rest = torch.tensor([n for n in range(len(x)) if n not in held.tolist()])
        weights = torch.linalg.solve(kernel[rest][:, rest] + tuned.noise_var * torch.eye(len(rest)), kernel[rest][:, held]).T
        variance = kernel[held, held] - (weights * kernel[held][:, rest]).sum(dim=1) + tuned.noise_var
        errors.append((y[held] - weights @ y[rest]).square() / variance)
    assert found == pytest.approx(float(torch.cat(errors).mean()), rel=1e-6)


def test_each_fold_tunes_anew():
    """A search near a result ends at a maximum for its own points."""
    x, y = data()
    tuned = Search(network(), x, y, OPTIONS, bar()).run()
    other = Search(network(), x, -2 * y, OPTIONS, bar()).near(tuned, 40)
    afresh = Search(network(), x, -2 * y, OPTIONS, bar()).run()
    assert other.log_marginal_likelihood == pytest.approx(afresh.log_marginal_likelihood, abs=0.3)
    few = Search(network(), x, -2 * y, OPTIONS, bar()).near(tuned, 1)
    assert few.log_marginal_likelihood < other.log_marginal_likelihood - 0.5
    assert few.input_scales["0"] == pytest.approx(tuned.input_scales["0"], rel=1e-9)
    assert few.noise_var == pytest.approx(float(tuned.noise_var), rel=1e-9)


@pytest.mark.filterwarnings("ignore:noise_var sits at:ntkgp.NumericalWarning")
def test_scales_fitted_to_few_points_show():
    """Many inputs and few points: leave-one-out errors look fine, and cross-validation does not."""
    g = seeded(5)
    x = torch.randn(40, 12, generator=g, dtype=torch.float64)
    y = x[:, 0] + 0.7 * x[:, 1] * x[:, 2] + 0.3 * torch.randn(40, generator=g, dtype=torch.float64)
    tuned = ntkgp.tune_table(x, y, generator=seeded())
    assert tuned.cross_validated == 1.0  # widened
    assert tuned.leave_one_out < 0.9
    new = torch.randn(500, 12, generator=g, dtype=torch.float64)
    target = new[:, 0] + 0.7 * new[:, 1] * new[:, 2] + 0.3 * torch.randn(500, generator=g, dtype=torch.float64)
    p = tuned.fit(x, y).predict(new)
    assert ((target - p.mean).abs() < 1.96 * p.total_std).double().mean() > 0.9


def test_widened_takes_the_cross_validated_error():
    x, y = data()
    tuned = replace(Search(network(), x, y, OPTIONS, bar()).run(), leave_one_out=1.2, cross_validated=1.5)
    wide = tuned.widened()
    assert wide.noise_var == pytest.approx(1.5 * float(tuned.noise_var))
    assert (wide.cross_validated, wide.leave_one_out) == (1.0, pytest.approx(0.8))
    assert replace(tuned, cross_validated=0.7).widened().noise_var == tuned.noise_var
    assert replace(tuned, cross_validated=None).widened().noise_var == pytest.approx(1.2 * float(tuned.noise_var))


@pytest.mark.parametrize(("points", "outputs", "crossed"), [(9, 1, False), (10, 1, True), (20, 3, True), (40, 1, False)])
def test_which_tables_are_cross_validated(points: int, outputs: int, crossed: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ntkgp.tuning.recipe.table.MOST", 60 if outputs > 1 else 30)
    g = seeded()
    x, y = torch.randn(points, 2, generator=g), torch.randn(points, outputs, generator=g)
    tuned = ntkgp.tune_table(x, y, starts=1, steps=3, generator=g)
    assert (tuned.cross_validated is not None) == crossed
    known = ntkgp.tune_table(x, y, noise_var=torch.rand(points, generator=g) + 0.1, starts=1, steps=3, generator=g)
    assert known.cross_validated is None
    assert cross_validation.FEWEST == 10
