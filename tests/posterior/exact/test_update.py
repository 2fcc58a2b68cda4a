"""An exact posterior that has seen more equals a fresh fit to rounding, and reuses the factor it has."""

from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import ntkgp
from ntkgp.linalg import growing_cholesky, growing_normal
from ntkgp.linalg.cholesky import Cholesky
from ntkgp.posterior.exact import kernel_form as over_observations
from ntkgp.posterior.exact import weight_form as over_weights
from ntkgp.posterior.exact.kernel_form import KernelForm
from ntkgp.posterior.exact.posterior import ExactPosterior
from ntkgp.posterior.exact.weight_form import WeightForm
from tests.posterior.exact.test_exact import bar, each_side
from tests.support.cases import Case, by_name, every, reference
from tests.support.exact import kernel_form, weight_form
from tests.support.helpers import seeded
from tests.support.oracle import error
from tests.support.typechecker import repeated
from tests.support.updates import grid, in_steps, network

KERNEL, WEIGHTS = ntkgp.Exact("kernel"), ntkgp.Exact("weights")


@every()
@each_side
def test_exact_is_equal_to_a_fresh_fit_and_to_the_oracle(case: Case, side: str):
    # float32 residuals of a function as prior mean are rounded one by one; noise of 1e-8 loses half of the digits to begin with
    tolerance = 1e-5 if case.dtype == torch.float32 else max(1e-6, bar(case, side)) if "tiny" in case.name else 1e-8
    posterior, fresh, truth = in_steps(case, ntkgp.Exact(side)), case.fit(ntkgp.Exact(side)), reference(case)
    assert isinstance(posterior, ExactPosterior)
    assert isinstance(fresh, ExactPosterior)
    assert posterior.refactored == 0 or side == "weights"  # rows that weigh far more than the factor are merged into it
    assert posterior.backward_error <= 100 * torch.finfo(torch.float64).eps
    a, b = posterior.predict(case.query), fresh.predict(case.query)
    assert error(a.mean, b.mean) <= tolerance
    assert error(a.mean.flatten(), truth.mean) <= tolerance
    assert error(posterior.covariance(case.query), fresh.covariance(case.query)) <= tolerance
    assert error(posterior.covariance(case.query), truth.covariance) <= max(tolerance, 1e-8)
    assert posterior.log_marginal_likelihood == pytest.approx(truth.log_marginal_likelihood, rel=max(1e-6, tolerance))
    for one, other in zip(posterior.leave_one_out(), fresh.leave_one_out(), strict=True):
        assert error(one, other) <= max(10 * tolerance, 1e-7)


@each_side
def test_five_hundred_single_updates_do_not_drift(side: str):
    (x, y), net = grid(550), network() if side == "kernel" else small()
    posterior = ntkgp.fit(net, x[:50], y[:50], noise_var=1e-3, method=ntkgp.Exact(side))
    for k in repeated(range(50, 550)):
        posterior = posterior.update(x[k : k + 1], y[k : k + 1])
    fresh, query = ntkgp.fit(net, x, y, noise_var=1e-3, method=ntkgp.Exact(side)), grid(40, seed=1)[0] * 2
    assert isinstance(posterior, ExactPosterior)
    assert isinstance(fresh, ExactPosterior)
    a, b = posterior.predict(query), fresh.predict(query)
    assert error(a.mean, b.mean) <= 1e-8
    assert error(a.variance, b.variance) <= 1e-8
    assert error(posterior.covariance(query), fresh.covariance(query)) <= 1e-8
    assert posterior.log_marginal_likelihood == pytest.approx(fresh.log_marginal_likelihood, rel=1e-8)
    assert posterior.refactored == 0
    if side == "kernel":
        assert error(kernel_form(posterior).cholesky.dense(), kernel_form(fresh).cholesky.dense()) <= 1e-10
        assert kernel_form(posterior).cholesky.count < 550 - 50  # it was made one piece more than once
    else:
        assert weight_form(posterior).normal.count < 550 - 50


def small() -> torch.nn.Module:
    """A network with fewer parameters than points."""
    return ntkgp.mlp(2, width=8, generator=seeded(3)).double()


def test_an_update_does_not_touch_what_is_there(monkeypatch: pytest.MonkeyPatch):
    """One point more writes one row: the large factor and the layer factors of the fit are shared, not copied."""
    (x, y), net = grid(300), network()
    posterior = ntkgp.fit(net, x[:290], y[:290], noise_var=0.01, method=KERNEL)
    one = posterior.update(x[290:291], y[290:291])
    two = one.update(x[291:292], y[291:292])
    first, second, third = (kernel_form(p).cholesky for p in (posterior, one, two))
    assert second.base is first.base
    assert third.base is first.base
    assert third.left is second.left
    assert two.problem.operators.jacobian._sources[0] is posterior.problem.operators.jacobian._sources[0]
    monkeypatch.setattr(KernelForm, "of", lambda *_: pytest.fail("factorised again"))
    two.update(x[292:], y[292:])


def test_an_update_over_the_weights_keeps_the_factor(monkeypatch: pytest.MonkeyPatch):
    """New rows lie beside the factor until they are many; then one matrix is factorised."""
    (x, y), net = grid(300), small()
    posterior = ntkgp.fit(net, x[:200], y[:200], noise_var=0.01, method=WEIGHTS)
    one = posterior.update(x[200:210], y[200:210])
    assert weight_form(one).normal.base is weight_form(posterior).normal.base
    assert weight_form(one).normal.count == 10
    monkeypatch.setattr(growing_normal, "MIN_MERGE", 4)
    monkeypatch.setattr(growing_normal, "MERGE_FRACTION", 1000)
    many = one.update(x[210:], y[210:])
    assert weight_form(many).normal.count == 0
    fresh = ntkgp.fit(net, x, y, noise_var=0.01, method=WEIGHTS)
    assert isinstance(many, ExactPosterior)
    assert isinstance(fresh, ExactPosterior)
    assert error(many.predict(x).variance, fresh.predict(x).variance) <= 1e-10
    assert many.log_marginal_likelihood == pytest.approx(fresh.log_marginal_likelihood, rel=1e-10)


def test_batches_are_followed_by_batches():
    """A posterior of a loader takes more data, as tensors and as a loader."""
    (x, y), net = grid(90), small()
    posterior = ntkgp.fit(net, DataLoader(TensorDataset(x[:60], y[:60]), batch_size=16), noise_var=0.01, method=WEIGHTS)
    for new in ((x[60:61], y[60:61]), (DataLoader(TensorDataset(x[61:], y[61:]), batch_size=10), None)):
        posterior = posterior.update(*new)
    fresh = ntkgp.fit(net, x, y, noise_var=0.01, method=WEIGHTS)
    assert isinstance(posterior, ExactPosterior)
    assert isinstance(fresh, ExactPosterior)
    assert error(posterior.predict(x).mean, fresh.predict(x).mean) <= 1e-10
    assert error(posterior.predict(x).variance, fresh.predict(x).variance) <= 1e-10
    for one, other in zip(posterior.leave_one_out(), fresh.leave_one_out(), strict=True):
        assert error(one, other) <= 1e-8


@each_side
def test_a_damaged_factor_is_noticed_and_computed_anew(side: str):
    """Over the weights the matrix lies beside its factor, so the factor can be computed anew without the data."""
    (x, y), net = grid(60), network()
    posterior, fresh = (ntkgp.fit(net, x[:n], y[:n], noise_var=0.01, method=ntkgp.Exact(side)) for n in (50, 60))
    assert isinstance(posterior, ExactPosterior)
    for factor in (1 + 1e-6, 0.1):  # the residuals say so; the new rows have no factor at all
        mended = replace(posterior, form=damaged(posterior, factor)).update(x[50:], y[50:])
        assert mended.refactored == 1
        assert error(mended.predict(x).mean, fresh.predict(x).mean) <= 1e-9
        assert error(mended.predict(x).variance, fresh.predict(x).variance) <= 1e-9
        assert mended.update(x[:1], y[:1]).refactored == 1


def damaged(posterior: ExactPosterior, factor: float) -> KernelForm | WeightForm:
    """The form with a wrong Cholesky factor."""
    form = posterior.form
    if isinstance(form, KernelForm):
        return replace(form, cholesky=replace(form.cholesky, base=form.cholesky.base * factor))
    assert isinstance(form, WeightForm)
    base = form.normal.base
    square = base.square.triu(1) + base.square.tril() * factor
    return replace(form, normal=replace(form.normal, base=Cholesky(square, base.diagonal)))


def test_old_rows_are_looked_at_when_the_factor_is_moved(monkeypatch: pytest.MonkeyPatch):
    """A wrong answer at points that came long ago does not show in the rows of new ones."""
    (x, y), net = grid(60), network()
    posterior = ntkgp.fit(net, x[:50], y[:50], noise_var=0.01, method=KERNEL)
    assert isinstance(posterior, ExactPosterior)
    form = kernel_form(posterior)
    base = form.cholesky.base.clone()
    base[7, 7] *= 1 + 1e-10
    bad = replace(posterior, form=replace(form, cholesky=replace(form.cholesky, base=base)))
    monkeypatch.setattr(growing_cholesky, "MIN_MERGE", 4)
    monkeypatch.setattr(growing_cholesky, "MERGE_FRACTION", 1000)
    for k in range(50, 56):
        bad = bad.update(x[k : k + 1], y[k : k + 1])
    assert bad.refactored == 1


def test_jitter_stays():
    """Noise below rounding: what was added to the diagonal is added to new rows too, and nothing is computed anew."""
    net = ntkgp.mlp(1, width=8, output_scale=1e8, generator=seeded()).double()
    x = torch.linspace(0.1, 1.0, 4).double().repeat(6).unsqueeze(1)
    with pytest.warns(ntkgp.NumericalWarning, match="singular to working precision"):
        posterior = ntkgp.fit(net, x, x[:, 0].sin(), noise_var=1e-8, method=KERNEL)
    assert kernel_form(posterior).jitter > 0
    more = posterior.update(x[:2] + 0.5, (x[:2, 0] + 0.5).sin())
    assert kernel_form(more).jitter == kernel_form(posterior).jitter
    assert bool(torch.isfinite(more.predict(x).mean).all())


@each_side
def test_the_exact_posterior_says_when_memory_is_short(side: str, monkeypatch: pytest.MonkeyPatch):
    (x, y), net = grid(20), network()
    posterior = ntkgp.fit(net, x, y, noise_var=0.01, method=ntkgp.Exact(side))
    monkeypatch.setattr(over_observations, "free_bytes", lambda device: 1000)
    monkeypatch.setattr(over_weights, "free_bytes", lambda device: 1000)
    monkeypatch.setattr(growing_normal, "MIN_MERGE", 0)
    monkeypatch.setattr(growing_normal, "MERGE_FRACTION", 10**9)
    words = r"of 21 points needs .*LowRank" if side == "kernel" else r"over 1184 parameters needs .*LowRank"
    with pytest.raises(ValueError, match=words):
        posterior.update(x[:1], y[:1])


def test_noise_per_point_and_two_outputs_over_the_weights():
    """The surprise of new observations, weighted by their own noise, is what the likelihood grows by."""
    case = by_name("noise per point, two outputs")
    posterior = in_steps(case, WEIGHTS)
    assert isinstance(posterior, ExactPosterior)
    assert posterior.log_marginal_likelihood == pytest.approx(reference(case).log_marginal_likelihood, rel=1e-9)


class Mixed(torch.nn.Module):
    """A category and a number; it takes tables of whole numbers, too."""

    def __init__(self):
        super().__init__()
        self.table, self.number, self.out = torch.nn.Embedding(5, 4), torch.nn.Linear(1, 4), torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        number = self.number(x[:, 1:].to(self.number.weight.dtype))
        return self.out(torch.tanh(self.table(x[:, 0].long()) + number))


@pytest.mark.parametrize(
    "method", [ntkgp.Exact("kernel"), ntkgp.Exact("weights"), ntkgp.LowRank(rank=10)], ids=["kernel", "weights", "low rank"]
)
def test_a_table_of_whole_numbers_grows_by_other_numbers(method: ntkgp.Exact | ntkgp.LowRank):
    """The new points are not rounded to the dtype of the old ones."""
    g = seeded()
    net = Mixed().double()
    x, y = torch.randint(0, 5, (10, 2), generator=g), torch.randn(10, generator=g, dtype=torch.float64)
    new, target = torch.tensor([[1.0, 2.5]], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    p = ntkgp.fit(net, x, y, noise_var=0.1, method=method, generator=g).update(new, target).predict(new)
    whole = ntkgp.fit(net, torch.cat([x.double(), new]), torch.cat([y, target]), noise_var=0.1, method=ntkgp.Exact()).predict(
        new
    )
    assert torch.allclose(p.mean, whole.mean, rtol=1e-6)
    assert torch.allclose(p.variance, whole.variance, rtol=1e-6)
