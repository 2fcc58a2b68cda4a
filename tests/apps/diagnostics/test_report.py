"""A report joins its parts, says their numbers in words and draws them."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkgp
from ntkgp import plots
from tests.support.evaluations import descended, drawn, moved
from tests.support.helpers import METHODS, each_method, seeded


def regression(outputs: int = 1, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    g = seeded(seed)
    x = 2 * torch.rand(60, 1, generator=g, dtype=torch.float64) - 1
    y = torch.cat([torch.sin(3 * x + k) for k in range(outputs)], dim=1)
    y = y + 0.1 * torch.randn(y.shape, generator=g, dtype=torch.float64)
    return ntkgp.mlp(1, outputs, width=32, generator=g).double(), x, y.squeeze(1) if outputs == 1 else y


@each_method
def test_a_report_joins_the_parts(method: str):
    net, x, y = regression()
    posterior = ntkgp.fit(net, x[:40], y[:40], noise_var=0.01, method=METHODS[method], generator=seeded())
    trained = descended(net, x[:40], y[:40], 20)
    r = ntkgp.report(posterior, x[40:], y[40:], trained=trained)
    p = posterior.predict(x[40:])
    assert torch.equal(r.prediction.mean, p.mean)
    assert r.evaluation.as_dict() == ntkgp.diagnostics.evaluate(p, y[40:]).as_dict()
    direct = ntkgp.diagnostics.kernel_regime(net, trained, x[40:])
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
    with pytest.raises(ValueError, match="pass noise_var, the noise variance of the observations y"):
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
    e = ntkgp.diagnostics.evaluate(p, y)
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
    "a column": (lambda: ntkgp.diagnostics.evaluate(ONES, torch.ones(4, 1)), ValueError, ["(4,)", "(4, 1)", "view_as"]),
    "too few": (lambda: ONES.log_density(torch.ones(3)), ValueError, ["shape of the prediction, (4,)", "(3,)"]),
    "integers": (lambda: ONES.log_density(torch.ones(4).long()), TypeError, ["int64", "y.float()"]),
    "a list": (lambda: ntkgp.diagnostics.evaluate(ONES, [1.0] * 4), TypeError, ["list", "torch.as_tensor(y)"]),  # pyright: ignore
    "NaN": (lambda: ntkgp.diagnostics.evaluate(ONES, torch.full((4,), torch.nan)), ValueError, ["y holds NaN"]),
    "another device": (lambda: ONES.log_density(torch.ones(4, device="meta")), ValueError, ["meta", "cpu", ".to("]),
    "nothing": (
        lambda: ntkgp.diagnostics.evaluate(ntkgp.Prediction(*torch.ones(5, 0)), torch.ones(0)),
        ValueError,
        ["no points"],
    ),
    "no variance": (lambda: ntkgp.diagnostics.evaluate(CERTAIN, torch.ones(4)), ValueError, ["variance is 0", "noise_var"]),
    "a level in per cent": (lambda: ONES.interval(95), ValueError, ["between 0 and 1", "95", "0.95"]),
    "levels in per cent": (
        lambda: ntkgp.diagnostics.evaluate(ONES, torch.ones(4)).coverage(95),
        ValueError,
        ["between 0 and 1", "0.95"],
    ),
    "not a posterior": (lambda: ntkgp.report(NET, X, X), TypeError, ["posterior must come from ntkgp.fit"]),  # pyright: ignore
    "not a network": (
        lambda: ntkgp.diagnostics.kernel_regime(NET, torch.sin, X),  # pyright: ignore[reportArgumentType]
        TypeError,
        ["trained must be a torch.nn.Module"],
    ),  # pyright: ignore
    "another width": (
        lambda: ntkgp.diagnostics.kernel_regime(NET, ntkgp.mlp(2, width=5), X),
        ValueError,
        ["'0.weight'", "(4, 2)", "(5, 2)"],
    ),
    "other names": (
        lambda: ntkgp.diagnostics.kernel_regime(NET, nn.Sequential(NET), X),
        ValueError,
        ["'0.weight'", "None", "unwrapped"],
    ),
    "no points": (lambda: ntkgp.diagnostics.kernel_regime(NET, NET, X, points=0), ValueError, ["points must be at least 1"]),
    "bad x": (lambda: ntkgp.diagnostics.kernel_regime(NET, NET, X * torch.nan), ValueError, ["x holds NaN"]),
}


def test_without_matplotlib_there_are_words_but_no_pictures(monkeypatch: pytest.MonkeyPatch):
    p, y = drawn((10,))
    r = ntkgp.diagnostics.Report(p, y, ntkgp.diagnostics.evaluate(p, y))
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
