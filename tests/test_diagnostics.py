"""Every number of a report against torch.distributions, integration and dense Jacobians; and what it says in words."""

import copy
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from modules import Scalar, cnn
from torch import Tensor, nn
from unchanged import unchanged

import ntkgp
from ntkgp import plots

SHAPES = [(50,), (25, 2)]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(shape: tuple[int, ...], stated: float = 1.0, shift: float = 0.0) -> tuple[ntkgp.Prediction, Tensor]:
    """Predictions of many stds and observations from them; `stated` times the true std is what the prediction claims."""
    g = seeded()
    mean, spread, noise = (torch.randn(shape, generator=g, dtype=torch.float64) for _ in range(3))
    variance, noise = spread.exp(), 0.5 * noise.exp()
    y = mean + shift + (variance + noise).sqrt() * torch.randn(shape, generator=g, dtype=torch.float64)
    variance, noise = stated**2 * variance, stated**2 * noise
    return ntkgp.Prediction(mean, variance, variance, variance, noise), y


def normal(p: ntkgp.Prediction) -> torch.distributions.Normal:
    assert p.noise_var is not None
    return torch.distributions.Normal(p.mean, (p.variance + p.noise_var).sqrt())


def crps_by_integration(law: torch.distributions.Normal, y: Tensor) -> Tensor:
    """∫ (F(t) − 1{t ≥ y})² dt, split at y where the integrand jumps, by the trapezoidal rule."""
    reach = 12 * law.stddev + (y - law.mean).abs()
    steps = torch.linspace(0, 1, 20001, dtype=torch.float64).view(-1, *[1] * y.ndim)
    below, above = y - reach * steps, y + reach * steps
    return torch.trapezoid(law.cdf(below).square() + (1 - law.cdf(above)).square(), reach * steps, dim=0)


@pytest.mark.parametrize("shape", SHAPES)
def test_log_density_and_interval(shape: tuple[int, ...]):
    p, y = drawn(shape)
    law = normal(p)
    torch.testing.assert_close(p.log_density(y), law.log_prob(y), rtol=1e-12, atol=1e-12)
    for level in (0.05, 0.5, 0.95, 0.999):
        low, high = p.interval(level)
        torch.testing.assert_close(law.cdf(high) - law.cdf(low), torch.full(shape, level).double(), rtol=1e-6, atol=0)
        torch.testing.assert_close(low + high, 2 * p.mean)
    assert [torch.equal(a, b) for a, b in zip(p.interval(), p.interval(0.95), strict=True)] == [True, True]


def test_log_density_is_differentiable_in_the_query():
    net = ntkgp.mlp(1, width=16, generator=seeded()).double()
    x = torch.linspace(-1, 1, 6, dtype=torch.float64).unsqueeze(1)
    posterior = ntkgp.fit(net, x, x[:, 0].sin(), noise_var=0.1)
    query, y = torch.tensor([[0.3]], dtype=torch.float64, requires_grad=True), torch.tensor([0.7], dtype=torch.float64)
    (slope,) = torch.autograd.grad(posterior.predict(query).log_density(y).sum(), query)
    up, down = (posterior.predict(query.detach() + h).log_density(y) for h in (1e-6, -1e-6))
    assert float(slope) == pytest.approx(float(up - down) / 2e-6, rel=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_every_number_of_an_evaluation(shape: tuple[int, ...], dtype: torch.dtype):
    """y stays float64 beside a float32 prediction: the numbers are those of what was predicted and observed, to float64."""
    p, y = drawn(shape)
    p = ntkgp.Prediction(*(t.to(dtype) for t in vars(p).values()))
    law = normal(ntkgp.Prediction(*(t.double() for t in vars(p).values())))
    e = ntkgp.evaluate(p, y)
    assert e.nll == pytest.approx(-float(law.log_prob(y).mean()), rel=1e-12)
    assert e.rmse == pytest.approx(float((y - law.mean).square().mean().sqrt()), rel=1e-12)
    assert e.crps == pytest.approx(float(crps_by_integration(law, y).mean()), rel=1e-6)
    assert e.sharpness == pytest.approx(float(law.stddev.mean()), rel=1e-12)
    torch.testing.assert_close(e.pit, law.cdf(y).flatten(), rtol=1e-10, atol=1e-14)
    depth = (2 * law.cdf(y).flatten() - 1).abs()
    expected = torch.stack([(depth <= k / 20).double().mean() for k in range(1, 20)])
    assert torch.equal(e.calibration(), expected)
    assert e.calibration_error == pytest.approx(float((expected - torch.arange(1, 20) / 20).abs().mean()), rel=1e-6)
    for level in (0.5, 0.95):
        low, high = p.interval(level)
        assert e.coverage(level) == pytest.approx(float(((low <= y) & (y <= high)).double().mean()), abs=1e-12)
    assert torch.equal(e.calibration(torch.tensor([0.0, 1.0])), torch.tensor([0.0, 1.0], dtype=torch.float64))


def test_known_numbers():
    """Standard normal, y = 0 and 1: φ(0) = 0.39894, Φ(1) = 0.84134, CRPS 0.23369 and 0.60244."""
    half = torch.full((2,), 0.5)
    e = ntkgp.evaluate(ntkgp.Prediction(torch.zeros(2), half, half, half, half), torch.tensor([0.0, 1.0]))
    assert e.pit.tolist() == pytest.approx([0.5, 0.841344746], abs=1e-9)
    assert e.nll == pytest.approx(0.9189385 + 0.25, abs=1e-6)
    assert e.crps == pytest.approx((0.2336950 + 0.6024414) / 2, abs=1e-6)
    assert (e.rmse, e.sharpness) == (pytest.approx(math.sqrt(0.5)), pytest.approx(1.0))
    assert (e.coverage(0.5), e.coverage(0.7)) == (0.5, 1.0)


def test_calibrated_data_are_found_calibrated():
    p, y = drawn((20000,))
    e = ntkgp.evaluate(p, y)
    for level in (0.1, 0.5, 0.8, 0.95, 0.99):
        assert abs(e.coverage(level) - level) <= 4 * math.sqrt(level * (1 - level) / 20000)
    assert e.calibration_error <= 4 / math.sqrt(12 * 20000)
    assert (e.verdict, e.lean) == ("calibrated", "centred")


@pytest.mark.parametrize(("stated", "coverage", "verdict", "advice"), [
    (0.5, 0.6729, "over-confident", "intervals too narrow; try tune()"),  # 2Φ(0.98) − 1
    (2.0, 0.9999, "under-confident", "intervals too wide; try tune()"),
])  # fmt: skip
def test_wrong_stds_are_flagged(stated: float, coverage: float, verdict: str, advice: str):
    p, y = drawn((1000,), stated)
    e = ntkgp.evaluate(p, y)
    assert e.coverage() == pytest.approx(coverage, abs=4 * math.sqrt(coverage * (1 - coverage) / 1000))
    assert e.verdict == verdict
    assert advice in str(ntkgp.Report(p, y, e))


@pytest.mark.parametrize("count", [10, 100])
def test_calibrated_data_are_seldom_flagged(count: int):
    """By construction in some 3 % of the draws."""
    p, g = ntkgp.Prediction(*torch.full((5, count), 0.5)), seeded()
    flagged = [ntkgp.evaluate(p, 0.5 + torch.randn(count, generator=g)).verdict != "calibrated" for _ in range(300)]
    assert 0 < sum(flagged) <= 20


def test_outliers_and_shifted_means_are_flagged():
    p, y = drawn((1000,), stated=2.0)
    tails = torch.where(torch.arange(1000) % 10 == 0, y + 100, y)
    assert ntkgp.evaluate(p, tails).verdict == "heavy-tailed"
    for shift, words in ((0.5, "too low"), (-0.5, "too high")):
        p, y = drawn((1000,), shift=shift)
        e = ntkgp.evaluate(p, y)
        assert e.lean == words
        assert f"means {words}" in str(ntkgp.Report(p, y, e))


def test_a_few_observations_condemn_only_what_is_far_off():
    p, y = drawn((10,), stated=0.8)
    assert ntkgp.evaluate(p, y).verdict == "calibrated"
    p, y = drawn((10,), stated=0.1)
    assert ntkgp.evaluate(p, y).verdict == "over-confident"


@pytest.mark.parametrize("far", [0.0, 1e3, 1e30])
def test_one_observation_however_far_gives_no_nan(far: float):
    p, y = ntkgp.Prediction(*torch.ones(5, 1)), torch.full((1,), far)
    e = ntkgp.evaluate(p, y)
    numbers = [v for v in e.as_dict().values() if not isinstance(v, str)]
    assert all(math.isfinite(v) for v in numbers)
    assert bool(torch.isfinite(e.pit).all())
    assert str(ntkgp.Report(p, y, e))
    json.dumps(e.as_dict(), allow_nan=False)


def moved(module: nn.Module, step: float) -> nn.Module:
    g, other = seeded(7), copy.deepcopy(module)
    with torch.no_grad():
        for p in other.parameters():
            p += step * torch.randn(p.shape, generator=g, dtype=p.dtype)
    return other


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in module.parameters() if p.requires_grad])


KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "paper mlp": (lambda: ntkgp.mlp(2, width=16, generator=seeded()), (2,)),
    "two outputs": (lambda: ntkgp.mlp(2, 2, width=8, generator=seeded()).double(), (2,)),
    "scalar": (Scalar, (2,)),
    "cnn": (cnn, (1, 6, 6)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("unchecked")
def test_kernel_regime_equals_the_dense_jacobians(kind: str):
    torch.manual_seed(0)
    build, features = KINDS[kind]
    module, x = build(), torch.randn(9, *features, generator=seeded(3))
    x = x.to(next(module.parameters()).dtype)
    trained = moved(module, 0.05)
    with unchanged(module, trained):
        got = ntkgp.kernel_regime(module, trained, x)
    f0, f, shift = oracle.outputs(module, x), oracle.outputs(trained, x), flat(trained) - flat(module)
    J0, J = oracle.jacobian(module, x), oracle.jacobian(trained, x)
    K0, K = J0 @ J0.T, J @ J.T
    assert got.mean_drift == pytest.approx(float((f - f0 - J0 @ shift).norm() / (f - f0).norm()), rel=1e-9)
    assert got.kernel_change == pytest.approx(float((K - K0).norm() / K0.norm()), rel=1e-9)
    assert got.weight_drift == pytest.approx(float(shift.norm() / flat(module).norm()), rel=1e-9)


def test_kernel_matrices_are_of_the_points_asked_for():
    module = ntkgp.mlp(2, width=16, generator=seeded()).double()
    trained, x = moved(module, 0.05), torch.randn(9, 2, generator=seeded(3), dtype=torch.float64)
    few = x[[0, 4, 8]]
    J0, J = oracle.jacobian(module, few), oracle.jacobian(trained, few)
    expected = float((J @ J.T - J0 @ J0.T).norm() / (J0 @ J0.T).norm())
    all_points, three = (ntkgp.kernel_regime(module, trained, x, points=n) for n in (9, 3))
    assert three.kernel_change == pytest.approx(expected, rel=1e-9)
    assert three.kernel_change != pytest.approx(all_points.kernel_change, rel=1e-3)
    assert three.mean_drift == all_points.mean_drift


def test_a_linear_model_never_leaves_its_tangent():
    module = nn.Linear(3, 2)
    regime = ntkgp.kernel_regime(module, moved(module, 10.0), torch.randn(20, 3, generator=seeded()))
    assert (regime.mean_drift, regime.kernel_change) == (0.0, 0.0)
    assert regime.weight_drift > 1
    assert regime.verdict.startswith("in the kernel regime")


def test_no_movement_no_drift():
    module, x = ntkgp.mlp(2, width=8, generator=seeded()), torch.randn(5, 2, generator=seeded())
    regime = ntkgp.kernel_regime(module, copy.deepcopy(module), x)
    assert (regime.mean_drift, regime.kernel_change, regime.weight_drift) == (0.0, 0.0, 0.0)
    assert "have not moved" in regime.verdict


def test_from_zero_weights_everything_is_drift_and_nothing_is_nan():
    module = nn.Sequential(nn.Linear(2, 4, bias=False), nn.Tanh(), nn.Linear(4, 1, bias=False))
    for p in module.parameters():
        nn.init.zeros_(p)
    regime = ntkgp.kernel_regime(module, moved(module, 1.0), torch.randn(5, 2, generator=seeded()))
    assert regime.mean_drift == 1.0  # the tangent at zero sees nothing
    assert all(math.isfinite(v) for v in vars(regime).values())
    assert regime.verdict.startswith("outside the kernel regime")


def descended(module: nn.Module, x: Tensor, y: Tensor, steps: int) -> nn.Module:
    J, trained = oracle.jacobian(module, x), copy.deepcopy(module)
    optimiser = torch.optim.SGD(trained.parameters(), lr=0.5 / float(torch.linalg.eigvalsh(J @ J.T)[-1]))
    for _ in range(steps):
        optimiser.zero_grad()
        (0.5 * (trained(x).squeeze(1) - y).square().sum()).backward()
        optimiser.step()
    return trained


def test_wide_networks_stay_and_narrow_ones_leave():
    x = torch.linspace(-1, 1, 10).unsqueeze(1)
    y = torch.sin(3 * x[:, 0])
    nets = [ntkgp.mlp(1, width=w, depth=2, activation=nn.Tanh(), generator=seeded(1)) for w in (4, 64, 1024)]
    narrow, middle, wide = (ntkgp.kernel_regime(net, descended(net, x, y, 100), x) for net in nets)
    assert wide.mean_drift < 0.05
    assert wide.kernel_change < 0.1
    assert wide.verdict.startswith("in the kernel regime")
    assert wide.mean_drift < middle.mean_drift < narrow.mean_drift
    assert wide.kernel_change < middle.kernel_change < narrow.kernel_change
    assert not narrow.verdict.startswith("in the kernel regime")


def test_frozen_parts_and_frozen_copies():
    """Only what was trainable at θ0 moves; that the trained copy was frozen for use does not matter."""
    module, x = ntkgp.mlp(2, width=16, generator=seeded()).double(), torch.randn(6, 2, generator=seeded()).double()
    module[0].requires_grad_(False)
    trained = copy.deepcopy(module)
    with torch.no_grad():
        trained[-1].weight *= 1.1  # pyright: ignore[reportOperatorIssue]
    a, b = (ntkgp.kernel_regime(module, net, x) for net in (trained, copy.deepcopy(trained).requires_grad_(False)))
    assert a == b
    assert a.mean_drift == 0.0  # linear in the last layer
    moved_by = float((trained[-1].weight - module[-1].weight).detach().norm())  # pyright: ignore
    assert a.weight_drift == pytest.approx(moved_by / float(flat(module).norm()), rel=1e-9)


def regression(outputs: int = 1, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    g = seeded(seed)
    x = 2 * torch.rand(60, 1, generator=g, dtype=torch.float64) - 1
    y = torch.cat([torch.sin(3 * x + k) for k in range(outputs)], dim=1)
    y = y + 0.1 * torch.randn(y.shape, generator=g, dtype=torch.float64)
    return ntkgp.mlp(1, outputs, width=32, generator=g).double(), x, y.squeeze(1) if outputs == 1 else y


METHODS = {"exact": ntkgp.Exact(), "low rank": ntkgp.LowRank(rank=20), "trained": ntkgp.TrainedNetworks(rank=4)}


@pytest.mark.parametrize("method", METHODS)
def test_a_report_joins_the_parts(method: str):
    net, x, y = regression()
    posterior = ntkgp.fit(net, x[:40], y[:40], noise_var=0.01, method=METHODS[method], generator=seeded())
    trained = descended(net, x[:40], y[:40], 20)
    r = ntkgp.report(posterior, x[40:], y[40:], trained=trained)
    p = posterior.predict(x[40:])
    assert torch.equal(r.prediction.mean, p.mean)
    assert r.evaluation.as_dict() == ntkgp.evaluate(p, y[40:]).as_dict()
    direct = ntkgp.kernel_regime(net, trained, x[40:])
    assert r.regime is not None
    assert vars(r.regime) == pytest.approx(vars(direct), rel=1e-9)
    assert direct.verdict in str(r)
    assert ntkgp.report(posterior, x[40:], y[40:]).regime is None


def test_the_words_hold_the_numbers():
    net, x, y = regression()
    r = ntkgp.report(ntkgp.fit(net, x[:40], y[:40], noise_var=0.01), x[40:], y[40:])
    text, e = str(r), r.evaluation
    spread = float((y[40:] - y[40:].mean()).square().mean().sqrt())
    epistemic = float((r.prediction.variance / (r.prediction.variance + 0.01)).mean())
    for words in (
        f"{e.rmse:.4g}",
        f"spreads by {spread:.4g}",
        f"{e.coverage():.1%}",
        f"{100 * epistemic:.0f} % of the variance",
    ):
        assert words in text
    assert str(e).startswith("20 observations: rmse ")
    assert e.verdict in str(e)


def test_a_variance_that_is_hardly_known_is_named():
    net, x, y = regression()
    loose, tight = (ntkgp.fit(net, x[:40], y[:40], noise_var=0.01, method=ntkgp.LowRank(rank=k)) for k in (1, 40))
    r = ntkgp.report(loose, x[40:], y[40:])
    bracket = float(((r.prediction.upper - r.prediction.lower) / (r.prediction.variance + 0.01)).mean())
    assert bracket > 0.1
    assert f"known only to within {100 * bracket:.0f} %: raise the rank" in str(r)
    assert "known only" not in str(ntkgp.report(tight, x[40:], y[40:]))


def test_two_outputs_and_noise_per_observation(tmp_path: Path):
    net, x, y = regression(outputs=2)
    noise = torch.full((40, 2), 0.01, dtype=torch.float64)
    posterior = ntkgp.fit(net, x[:40], y[:40], noise_var=noise)
    with pytest.raises(ValueError, match="pass noise_var, that of the observations y"):
        ntkgp.report(posterior, x[40:], y[40:])
    with pytest.raises(ValueError, match="pass noise_var to predict"):
        posterior.predict(x[40:]).log_density(y[40:])
    r = ntkgp.report(posterior, x[40:], y[40:], noise_var=0.01)
    assert r.evaluation.pit.shape == (40,)
    r.save(tmp_path)


def test_plot_and_save(tmp_path: Path):
    net, x, y = regression()
    r = ntkgp.report(ntkgp.fit(net, x[:40], y[:40], noise_var=0.01), x[40:], y[40:], trained=moved(net, 0.01))
    written = r.save(tmp_path / "new" / "folder")
    assert [path.name for path in written] == ["report.txt", "report.json", "report.png"]
    assert written[0].read_text(encoding="utf-8") == f"{r}\n"
    numbers = json.loads(written[1].read_text(encoding="utf-8"))
    assert numbers["evaluation"]["rmse"] == r.evaluation.rmse
    assert numbers["calibration"]["observed"] == r.evaluation.calibration().tolist()
    assert r.regime is not None
    assert numbers["kernel_regime"]["mean_drift"] == r.regime.mean_drift
    assert written[2].stat().st_size > 10_000


def test_plots_show_the_numbers_in_the_axes_given():
    p, y = drawn((3000,), stated=0.5)
    e = ntkgp.evaluate(p, y)
    left, right = plots.figure(6, 3).subplots(1, 2)
    assert plots.calibration(e, left) is left
    assert plots.pit(e, right) is right
    curve = next(line for line in left.lines if line.get_label() == "observed")
    assert curve.get_ydata()[95] == pytest.approx(e.coverage(0.95), abs=1e-3)
    heights = [bar.get_height() for bar in right.patches if bar.get_width() == pytest.approx(0.1)]
    assert sum(heights) == pytest.approx(10)
    assert heights[0] == pytest.approx(10 * float((e.pit < 0.1).double().mean()))
    inside, outside = (torch.as_tensor(line.get_xydata()) for line in plots.residuals(p, y).lines[1:])
    assert len(inside) + len(outside) == 1000  # every third
    assert len(inside) / 1000 == pytest.approx(e.coverage(0.95), abs=0.05)
    assert torch.as_tensor(plots.predicted(p, y).lines[0].get_xydata()).shape == (1000, 2)


ONES = ntkgp.Prediction(*torch.ones(5, 4))
CERTAIN = ntkgp.Prediction(torch.ones(4), *torch.zeros(4, 4))
NET, X = ntkgp.mlp(2, width=4, generator=seeded()), torch.ones(3, 2)

BAD: dict[str, tuple[Callable[[], Any], type[Exception], list[str]]] = {
    "a column": (lambda: ntkgp.evaluate(ONES, torch.ones(4, 1)), ValueError, ["(4,)", "(4, 1)", "view_as"]),
    "too few": (lambda: ONES.log_density(torch.ones(3)), ValueError, ["shape of the prediction, (4,)", "(3,)"]),
    "integers": (lambda: ONES.log_density(torch.ones(4).long()), TypeError, ["int64", "y.float()"]),
    "a list": (lambda: ntkgp.evaluate(ONES, [1.0] * 4), TypeError, ["list", "torch.as_tensor(y)"]),  # pyright: ignore
    "NaN": (lambda: ntkgp.evaluate(ONES, torch.full((4,), torch.nan)), ValueError, ["y holds NaN"]),
    "another device": (lambda: ONES.log_density(torch.ones(4, device="meta")), ValueError, ["meta", "cpu", ".to("]),
    "nothing": (lambda: ntkgp.evaluate(ntkgp.Prediction(*torch.ones(5, 0)), torch.ones(0)), ValueError, ["no points"]),
    "no variance": (lambda: ntkgp.evaluate(CERTAIN, torch.ones(4)), ValueError, ["variance is 0", "noise_var"]),
    "a level in per cent": (lambda: ONES.interval(95), ValueError, ["between 0 and 1", "95", "0.95"]),
    "levels in per cent": (lambda: ntkgp.evaluate(ONES, torch.ones(4)).coverage(95), ValueError, ["between 0 and 1", "0.95"]),
    "not a posterior": (lambda: ntkgp.report(NET, X, X), TypeError, ["posterior must come from ntkgp.fit"]),  # pyright: ignore
    "not a network": (lambda: ntkgp.kernel_regime(NET, torch.sin, X), TypeError, ["trained must be a torch.nn.Module"]),  # pyright: ignore
    "another width": (
        lambda: ntkgp.kernel_regime(NET, ntkgp.mlp(2, width=5), X),
        ValueError,
        ["'0.weight'", "(4, 2)", "(5, 2)"],
    ),
    "other names": (lambda: ntkgp.kernel_regime(NET, nn.Sequential(NET), X), ValueError, ["'0.weight'", "None", "unwrapped"]),
    "no points": (lambda: ntkgp.kernel_regime(NET, NET, X, points=0), ValueError, ["points must be at least 1"]),
    "bad x": (lambda: ntkgp.kernel_regime(NET, NET, X * torch.nan), ValueError, ["x holds NaN"]),
}


def test_without_matplotlib_there_are_words_but_no_pictures(monkeypatch: pytest.MonkeyPatch):
    p, y = drawn((10,))
    r = ntkgp.Report(p, y, ntkgp.evaluate(p, y))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "rmse" in str(r)
    with pytest.raises(ImportError, match=r"pip install 'ntkgp\[cli\]'"):
        r.plot()


@pytest.mark.parametrize("what", BAD)
@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_refused_with_words(what: str):
    call, raises, words = BAD[what]
    with pytest.raises(raises) as caught:
        call()
    assert [word for word in words if word not in str(caught.value)] == []
