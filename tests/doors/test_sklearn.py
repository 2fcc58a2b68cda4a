"""The estimator keeps scikit-learn's contract, agrees with its Gaussian process, and says what it cannot do."""

import contextlib
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import ntkgp
from ntkgp._system.check_options import check_count
from ntkgp.sklearn import NTKGPRegressor

pytestmark = pytest.mark.filterwarnings("ignore::ntkgp.NumericalWarning")


def small(features: int, outputs: int, generator: torch.Generator) -> nn.Module:
    return ntkgp.mlp(features, outputs, width=16, depth=1, activation=nn.SiLU(), generator=generator)


def quick(**options: Any) -> NTKGPRegressor:
    return NTKGPRegressor(**{"module": small, "steps": 20, "starts": 1, "random_state": 0, **options})


def data(count: int = 60, targets: int = 0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Far from standardised; targets = 0 for a vector."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, 3)) * [1, 10, 0.1] + [0, 50, -3]
    y = 1000 + 200 * np.sin(X[:, 0]) + rng.normal(0, 20, count)
    return X, (np.stack([y] + [X[:, 1] * k for k in range(1, targets)], axis=1) if targets else y)


class Narrow:
    """:func:`small` with the same name in every process, which tests that run side by side need."""

    def __call__(self, features: int, outputs: int, generator: torch.Generator) -> nn.Module:
        return small(features, outputs, generator)

    def __repr__(self) -> str:
        return "Narrow()"


@parametrize_with_checks([NTKGPRegressor(Narrow(), steps=5, starts=1)])
@pytest.mark.filterwarnings("ignore")  # they fit absurd data on purpose
def test_the_contract_of_scikit_learn(estimator: NTKGPRegressor, check: Any):
    check(estimator)


@pytest.mark.parametrize("targets", [0, 2])
def test_it_agrees_with_scikit_learns_gaussian_process(targets: int):
    """A linear network has the kernel v·Σ s² x x′, which scikit-learn knows; one target does not see the other."""
    X, y = data(targets=targets)
    noise = 0.3 * float(y.var(axis=0).min())
    model = quick(module=nn.Linear(3, max(1, targets), bias=False), noise_var=noise).fit(X, y)
    tuned: Any = model.tuned_
    Z = (X - X.mean(0)) / X.std(0) * tuned.input_scales["scales"].numpy()
    mean, std = model.predict(X[:7], return_std=True, include_noise=False)
    cov = model.predict(X[:7], return_cov=True, include_noise=False)[1]
    for c in range(max(1, targets)):
        column = np.s_[..., c] if targets else np.s_[...]
        center, spread = y[column].mean(), y[column].std()
        alpha = float(tuned.noise_var.flatten()[c])
        gp: Any = GaussianProcessRegressor(ConstantKernel(tuned.prior_var["network"]) * DotProduct(1e-9), alpha=alpha)
        gp.set_params(optimizer=None).fit(Z, (y[column] - center) / spread)
        theirs, their_cov = gp.predict(Z[:7], return_cov=True)
        np.testing.assert_allclose(mean[column], center + spread * theirs, rtol=1e-8)
        np.testing.assert_allclose(cov[column], spread**2 * their_cov, rtol=1e-6, atol=1e-8 * spread**2)
        np.testing.assert_allclose(std[column] ** 2, spread**2 * their_cov.diagonal(), rtol=1e-6)
    total = model.predict(X[:7], return_std=True)[1]
    np.testing.assert_allclose(total**2, std**2 + noise, rtol=1e-9)
    np.testing.assert_allclose(
        model.predict(X[:7], return_cov=True)[1], cov + noise * np.eye(7).reshape(7, 7, *[1] * (cov.ndim - 2)), rtol=1e-9
    )


def test_the_likelihood_is_that_of_y_in_its_own_units():
    X, y = data()
    one, other = quick().fit(X, y), quick().fit(X, 10 * y + 3)
    assert isinstance(one.noise_var_, float)
    assert other.log_marginal_likelihood_ == pytest.approx(one.log_marginal_likelihood_ - len(y) * np.log(10), rel=1e-6)
    assert other.noise_var_ == pytest.approx(100 * one.noise_var_, rel=1e-6)


def test_the_recipe_learns_the_function_and_the_noise():
    X, y = data(150)
    model = NTKGPRegressor(width=64, steps=40, random_state=0).fit(X[:100], y[:100])
    mean, std = model.predict(X[100:], return_std=True)
    assert model.score(X[100:], y[100:]) > 0.9
    assert isinstance(model.noise_var_, float)
    assert 10 < model.noise_var_**0.5 < 40
    assert 0.8 < np.mean(np.abs(y[100:] - mean) < 2 * std) <= 1
    assert (model.predict(X[100:], return_std=True, include_noise=False)[1] < std).all()


@pytest.mark.parametrize("module", [None, small, small(3, 1, torch.Generator().manual_seed(3))])
def test_the_same_seed_gives_the_same_numbers_and_the_global_one_is_untouched(module: Any):
    X, y = data(30)
    options = {"module": module, "width": 16, "steps": 5, "starts": 2, "points": 20, "random_state": 7}
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = NTKGPRegressor(**options).fit(X, y).predict(X, return_std=True)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again = NTKGPRegressor(**options).fit(X, y).predict(X, return_std=True)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


def test_a_module_that_ignores_its_generator_is_seeded_too():
    X, y = data(20)
    fits = [quick(module=lambda d, c, _: nn.Linear(d, c)).fit(X, y).predict(X) for _ in range(2)]
    assert np.array_equal(fits[0], fits[1])


def test_a_module_that_is_passed_stays_as_it_was():
    X, y = data(20)
    module = small(3, 1, torch.Generator().manual_seed(0))
    before = {name: p.clone() for name, p in module.named_parameters()}
    quick(module=module).fit(X, y)
    assert all(torch.equal(p, before[name]) for name, p in module.named_parameters())


@pytest.mark.parametrize("method", [None, ntkgp.LowRank(rank=8, draws=4)])
@pytest.mark.parametrize("targets", [0, 2])
def test_a_fitted_estimator_travels(method: Any, targets: int):
    X, y = data(40, targets)
    model = quick(method=method).fit(X, y)
    other = pickle.loads(pickle.dumps(model))
    for a, b in zip(model.predict(X, return_std=True), other.predict(X, return_std=True), strict=True):
        assert np.array_equal(a, b)
    assert np.array_equal(model.sample_y(X, 2), other.sample_y(X, 2))


def test_pipelines_grids_folds_and_clones():
    X, y = data(45)
    pipeline = make_pipeline(PolynomialFeatures(2, include_bias=False), quick(steps=5))
    assert cross_val_score(pipeline, X, y, cv=3).mean() > 0.5
    grid = GridSearchCV(quick(steps=5), {"noise_var": ["tuned", 400.0], "module": [small, nn.Linear(3, 1)]}, cv=3).fit(X, y)
    assert grid.best_params_["module"] is small
    other: Any = clone(grid.best_estimator_)
    assert other.get_params()["noise_var"] == grid.best_params_["noise_var"]


@pytest.mark.parametrize("targets", [0, 1, 2])
def test_shapes(targets: int):
    X, y = data(30, targets)
    model: Any = quick(steps=3).fit(X, y)
    columns = y.shape[1:]
    mean, std = model.predict(X[:4], return_std=True)
    assert mean.shape == std.shape == (4, *columns)
    assert mean.dtype == std.dtype == np.float64
    assert model.predict(X[:4], return_cov=True)[1].shape == (4, 4, *columns)
    assert model.sample_y(X[:4], 5).shape == (4, *columns, 5)
    assert np.shape(model.noise_var_) == columns
    assert model.n_features_in_ == 3


def test_draws_have_the_mean_and_the_spread_of_the_prediction():
    X, y = data(40)
    model = quick().fit(X, y)
    for include_noise in (True, False):
        mean, std = model.predict(X[:3], return_std=True, include_noise=include_noise)
        draws = model.sample_y(X[:3], 4000, random_state=1, include_noise=include_noise)
        np.testing.assert_allclose(draws.mean(1), mean, atol=5 * std.max() / np.sqrt(4000))
        np.testing.assert_allclose(draws.std(1), std, rtol=0.08)
    assert np.array_equal(model.sample_y(X, random_state=3), model.sample_y(X, random_state=3))


def test_noise_known_for_each_observation():
    X, y = data(40)
    noise = np.where(np.arange(40) < 20, 1.0, 1e6)
    model = quick().fit(X, y, noise_var=noise)
    near, far = (np.abs(model.predict(X) - y)[part].mean() for part in (noise == 1, noise > 1))
    assert near < far
    epistemic = model.predict(X, return_std=True, include_noise=False)[1]
    total = model.predict(X, return_std=True, noise_var=noise)[1]
    np.testing.assert_allclose(total**2, epistemic**2 + noise, rtol=1e-9)
    assert model.noise_var_ is None
    with pytest.raises(ValueError, match="pass noise_var for these points too, or include_noise=False"):
        model.predict(X, return_std=True)


@pytest.mark.parametrize("module", [None, small])
def test_constant_columns_and_targets(module: Any):
    X, y = data(20)
    X[:, 1] = 0.1
    for target in (y, np.full(20, 0.3), np.stack([y, np.full(20, 3.0)], axis=1)):
        model = quick(module=module, width=16, steps=5).fit(X, target)
        mean, std = model.predict(X, return_std=True)
        assert np.isfinite(mean).all()
        assert (np.isfinite(std) & (std >= 0)).all()
    np.testing.assert_allclose(mean[:, 1], 3.0, rtol=0.05)


def test_a_constant_target_is_warned_about():
    with pytest.warns(ntkgp.NumericalWarning, match="y is constant"):
        quick(steps=2).fit(data(5)[0], np.ones(5))


def test_a_model_from_files_has_no_result_of_tuning():
    model = quick(steps=2).fit(*data(10))
    model.model_ = replace(model.model_, tuned=None)
    with pytest.raises(AttributeError, match="loaded from files, which do not store the result of tuning; call fit"):
        _ = model.tuned_


def test_without_standardisation_columns_stay_as_they_are():
    X, y = data(20)
    model = quick(standardize=False, steps=2).fit(X, y)
    assert model.inputs_.scale.tolist() == [1, 1, 1]
    assert float(model.targets_.center) == 0


def test_whole_numbers_of_numpy():
    X, y = data(20)
    counts: dict[str, Any] = {"width": np.uint8(100), "steps": np.int64(2), "starts": np.int32(1), "points": np.int64(15)}
    model, plain = (quick(module=None, **options).fit(X, y) for options in (counts, {n: int(c) for n, c in counts.items()}))
    assert json.dumps({**model.model_.fitted, "seconds": 0}) == json.dumps({**plain.model_.fitted, "seconds": 0})
    assert np.array_equal(model.predict(X), plain.predict(X))
    grid = GridSearchCV(quick(), {"steps": np.arange(1, 3)}, cv=2).fit(X, y)
    assert grid.best_params_["steps"] in (1, 2)


@pytest.mark.usefixtures("unchecked")
def test_counts_are_whole_numbers_of_any_kind():
    for count in (2, np.int64(2), np.uint8(2)):
        check_count(count, "steps", 2)
    for wrong in (True, np.bool_(True), np.float64(2), 2.0, "2"):
        with pytest.raises(TypeError, match="steps must be a whole number, got"):
            check_count(wrong, "steps", 1)  # pyright: ignore[reportArgumentType]


def test_errors_say_what_to_do():
    X, y = data(10)
    with pytest.raises(NotFittedError):
        quick().predict(X)
    with pytest.raises(ValueError, match="noise_var must be 'tuned' or a positive number, got 'learned'"):
        quick(noise_var="learned").fit(X, y)
    with pytest.raises(ValueError, match="noise_var must be positive"):
        quick(noise_var=-1.0).fit(X, y)
    with pytest.raises(ValueError, match="one per observation"):
        quick().fit(X, y, noise_var=0.1)
    with pytest.raises(TypeError, match=r"module must be None, an nn\.Module or a function"):
        quick(module="mlp").fit(X, y)
    with pytest.raises(RuntimeError, match="exclude each other"):
        quick(steps=2).fit(X, y).predict(X, return_std=True, return_cov=True)


def test_a_fit_that_fails_leaves_no_model_of_other_data():
    x = np.random.default_rng(0).normal(size=(20, 2))
    regressor = NTKGPRegressor(width=8, steps=2, starts=1).fit(x, x[:, 0])
    with pytest.raises(ValueError, match="noise_var"):
        regressor.set_params(noise_var="wrong").fit(x[:, ::-1], x[:, 0])
    with pytest.raises(NotFittedError):
        regressor.predict(x)
    fresh = NTKGPRegressor(noise_var="wrong")
    with contextlib.suppress(ValueError):
        fresh.fit(x, x[:, 0])
    with pytest.raises(NotFittedError):
        fresh.predict(x)


def test_torch_s_random_numbers_are_left_alone_by_fits_in_threads():
    """Two fits that seed and restore the same global generator can leave one's seed behind."""
    x = np.random.default_rng(0).normal(size=(20, 2))

    def fitted(_: int) -> Any:
        return NTKGPRegressor(width=8, steps=2, starts=1, random_state=0).fit(x, x[:, 0]).predict(x)

    before = torch.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(fitted, range(4)))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(np.allclose(found[0], other, rtol=1e-6) for other in found)  # threads may add sums up in another order
