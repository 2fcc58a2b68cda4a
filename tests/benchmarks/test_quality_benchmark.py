"""The quality benchmark: data, scores, baselines in a small form, resuming, the report."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks import timing
from benchmarks.methods.dropout import mc_dropout, mc_dropout_published
from benchmarks.methods.ensemble import deep_ensemble, deep_ensemble_tuned
from benchmarks.methods.gaussian_process import _covariance, _fit, gaussian_process
from benchmarks.scores import Forecast, gaussian_crps, score
from benchmarks.store import read
from benchmarks.studies import runner
from benchmarks.studies.quality import study
from benchmarks.studies.quality.methods import METHODS
from benchmarks.uci import Split, load, splits_of


@pytest.fixture(scope="module")
def split(uci: Path) -> Split:
    return load(uci, "yacht", "standard", 0)


# Data


def test_standardised_by_the_training_points_alone(uci: Path, split: Split):
    stored = np.load(uci / "yacht.npz")
    test = stored["test_standard"][0]
    assert splits_of(uci, "yacht", "gap") == 3
    assert split.x.shape == (100, 3)
    assert split.x_test.shape == (20, 3)
    torch.testing.assert_close(split.x.mean(0), torch.zeros(3).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(split.x.std(0, correction=0), torch.tensor([1.0, 1.0, 0.0]).double())
    raw, scale = stored["x"][~test], stored["x"][~test].std(0)
    expected = (stored["x"][test] - raw.mean(0)) / np.where(scale > 0, scale, 1)
    torch.testing.assert_close(split.x_test, torch.from_numpy(expected))
    torch.testing.assert_close(split.y * split.scale + split.center, torch.from_numpy(stored["y"][~test]))
    torch.testing.assert_close(split.y_test, torch.from_numpy(stored["y"][test]))


def test_the_validation_part_is_of_training_points(split: Split):
    inner = split.blind().validation(seed=3)
    assert len(inner.x) + len(inner.x_test) == len(split.x)
    both = torch.cat([inner.y * inner.scale + inner.center, inner.y_test]).sort().values
    torch.testing.assert_close(both, (split.y * split.scale + split.center).sort().values)
    assert split.blind().y_test.isnan().all()


def test_an_unknown_kind_is_told(uci: Path):
    with pytest.raises(ValueError, match="standard"):
        load(uci, "yacht", "random", 0)


# Scores


def test_scores_agree_with_torch_and_with_an_integral():
    generator = torch.Generator().manual_seed(0)
    y, mean = torch.randn(2, 7, generator=generator).double()
    std = 0.3 + torch.rand(7, generator=generator).double()
    got = score(Forecast(mean, std), y)
    normal = torch.distributions.Normal(mean, std)
    assert got["nll"] == pytest.approx(-float(normal.log_prob(y).mean()))
    assert got["rmse"] == pytest.approx(float((y - mean).square().mean()) ** 0.5)
    grid = torch.linspace(-12, 12, 48_001).double().unsqueeze(1)
    integrand = (normal.cdf(grid) - (grid >= y).double()).square()
    torch.testing.assert_close(gaussian_crps(y, mean, std), torch.trapezoid(integrand, grid, dim=0), rtol=2e-3, atol=2e-4)
    inside = (normal.cdf(y) - 0.5).abs() <= 0.475
    assert got["coverage"] == pytest.approx(float(inside.double().mean()))


def test_a_density_of_its_own_counts_for_the_likelihood_alone():
    y = torch.zeros(3)
    got = score(Forecast(torch.zeros(3), torch.ones(3), lambda y: torch.full_like(y, -2.5)), y)
    assert got["nll"] == 2.5
    assert got["coverage"] == 1


def test_a_forecast_of_another_shape_is_told():
    with pytest.raises(ValueError, match="shape"):
        score(Forecast(torch.zeros(3, 1), torch.ones(3, 1)), torch.zeros(3))


def test_a_forecast_is_given_back_in_raw_units(split: Split):
    forecast = split.forecast(torch.zeros(20), torch.ones(20), note=1)
    assert torch.equal(forecast.mean, torch.full((20,), split.center, dtype=torch.float64))
    assert torch.equal(forecast.std, torch.full((20,), split.scale, dtype=torch.float64))
    assert forecast.chosen == {"note": 1}


# Baselines


def _better_than_the_mean(split: Split, forecast: Forecast) -> None:
    got = score(forecast, split.y_test)
    blank = score(split.forecast(torch.zeros(len(split.x_test)), torch.ones(len(split.x_test))), split.y_test)
    assert all(math.isfinite(value) for value in got.values())
    assert got["nll"] < blank["nll"]
    assert got["rmse"] < 0.5 * blank["rmse"]
    assert got["crps"] < 0.5 * blank["crps"]
    assert got["coverage"] > 0.5


SMALL: dict[str, Callable[[Split], Forecast]] = {
    "mc_dropout": lambda split: mc_dropout(split, seed=0, epochs=300, samples=200),
    "mc_dropout_published": lambda split: mc_dropout_published(split, seed=0, epochs=300, samples=200),
    "deep_ensemble": lambda split: deep_ensemble(split, seed=0),
    "deep_ensemble_tuned": lambda split: deep_ensemble_tuned(split, seed=0, steps=200),
    "gaussian_process": lambda split: gaussian_process(split, seed=0, subset=60),
}


@pytest.mark.parametrize("name", SMALL)
def test_baselines_learn_an_easy_function(name: str, split: Split):
    _better_than_the_mean(split, SMALL[name](split.blind()))


def test_the_mixture_of_dropout_is_a_density(split: Split):
    forecast = SMALL["mc_dropout"](split.blind())
    assert forecast.log_density is not None
    width = float(forecast.std.max())
    grid = torch.linspace(float(forecast.mean.min()) - 12 * width, float(forecast.mean.max()) + 12 * width, 4001).double()
    densities = torch.stack([forecast.log_density(value.expand(len(forecast.mean))).exp().double() for value in grid])
    torch.testing.assert_close(torch.trapezoid(densities, grid, dim=0), torch.ones(20).double(), rtol=1e-3, atol=0)
    mean = torch.trapezoid(densities * grid.unsqueeze(1), grid, dim=0)
    torch.testing.assert_close(mean, forecast.mean, rtol=1e-3, atol=0)


def test_the_evidence_of_the_gp_and_its_gradient(split: Split):
    evidence, h = _fit(split.x[:40], split.y[:40], 1.0, 0.5, 5)
    exact = torch.distributions.MultivariateNormal(h[-1].expand(40), _covariance(split.x[:40], h)).log_prob(split.y[:40])
    assert evidence == pytest.approx(float(exact), rel=1e-8)
    _, longer = _fit(split.x[:40], split.y[:40], 1.0, 0.5, 200)
    longer.requires_grad_()
    best = torch.distributions.MultivariateNormal(longer[-1].expand(40), _covariance(split.x[:40], longer)).log_prob(
        split.y[:40]
    )
    (slope,) = torch.autograd.grad(best, longer)
    assert float(best.detach()) > evidence
    assert float(slope.abs().max()) < 1e-2


@pytest.mark.parametrize("structure", ["full", "kron", "last_layer"])
@pytest.mark.filterwarnings("ignore")
def test_laplace_learns_an_easy_function(structure: str, split: Split):
    pytest.importorskip("laplace")
    _better_than_the_mean(split, METHODS[f"laplace_{structure}"](split.blind(), seed=0, steps=400))


@pytest.mark.filterwarnings("ignore")
def test_the_evidence_by_eigenvalues_is_that_of_the_package():
    laplace = pytest.importorskip("laplace")
    from laplace.curvature import GGNInterface  # pyright: ignore[reportMissingImports]
    from torch.utils.data import DataLoader, TensorDataset

    from benchmarks.methods.laplace_torch import evidence_of

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.SiLU(), torch.nn.Linear(5, 1)).double()
    data = TensorDataset(torch.randn(20, 2).double(), torch.randn(20, 1).double())
    fitted = laplace.Laplace(net, "regression", "all", "full", backend=GGNInterface)
    fitted.fit(DataLoader(data, batch_size=7))
    precision, noise = torch.tensor(0.7).double(), torch.tensor(0.3).double()
    ours = evidence_of(fitted)(precision, noise)
    torch.testing.assert_close(ours, fitted.log_marginal_likelihood(precision, noise))


# Runs and report


def _constant(split: Split, *, seed: int, device: str) -> Forecast:
    assert split.y_test.isnan().all()
    return split.forecast(torch.zeros(len(split.x_test)), torch.ones(len(split.x_test)), seed_seen=seed)


def _broken(split: Split, *, seed: int, device: str) -> Forecast:
    raise RuntimeError("nothing learnt")


@pytest.fixture
def two_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "METHODS", {"constant": _constant, "broken": _broken})
    monkeypatch.setattr(study, "unit", lambda *_: 0.5)


@pytest.mark.usefixtures("two_methods")
def test_runs_resume_and_failures_are_told(uci: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    common = ["--data-dir", str(uci), "--sets", "yacht", "--out", str(tmp_path)]
    assert runner.main(study.STUDY, [*common, "--methods", "constant", "--splits", "2"]) == 0
    (path,) = tmp_path.iterdir()
    assert path.name == "quality-yacht.jsonl"
    runs = {study.STUDY.key(record): record for record in read(path)}
    assert sorted(runs) == [("yacht", kind, k, "constant") for kind in ("gap", "standard") for k in (0, 1)]
    record = runs["yacht", "standard", 1, "constant"]
    assert record["settings"] == {"seed_seen": 1}
    assert set(record["scores"]) == {"nll", "rmse", "crps", "coverage"}
    assert record["environment"]["torch"] == torch.__version__
    capsys.readouterr()
    before = path.read_bytes()
    assert runner.main(study.STUDY, [*common, "--methods", "constant", "--splits", "0", "1", "2"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in told[:-1]] == ["yacht-standard-2-constant", "yacht-gap-2-constant"]
    assert path.read_bytes().startswith(before)
    assert runner.main(study.STUDY, [*common, "--methods", "broken", "--splits", "1"]) == 1
    assert "nothing learnt" in capsys.readouterr().out
    assert len(read(path)) == 6


def test_worker_processes_can_find_what_they_run():
    """``python -m`` makes a module's functions those of ``__main__``, which a spawned process does not have."""
    assert runner.complete.__module__ == "benchmarks.studies.runner"
    assert study.STUDY.run.__module__ == "benchmarks.studies.quality.study"


def test_shared_work_is_done_once_and_counted_twice():
    calls: list[int] = []

    def make() -> Tensor:
        calls.append(1)
        return torch.randn(300, 300) @ torch.randn(300, 300)

    start = timing.now("cpu")
    first = timing.shared(("test", "work"), make, "cpu")
    middle = timing.now("cpu")
    second = timing.shared(("test", "work"), make, "cpu")
    assert len(calls) == 1
    assert first is second
    assert timing.now("cpu") - middle >= 0.5 * (middle - start) > 0


def test_the_report_is_made_of_a_handful_of_runs(tmp_path: Path):
    pytest.importorskip("matplotlib")
    results, docs = tmp_path / "results", tmp_path / "docs"
    results.mkdir()
    lines: list[dict] = [{"environment": {"ntkgp": "0", "torch": "2", "python": "3"}}]
    for kind, count in (("standard", 20), ("gap", 2)):
        for k in range(count):
            for method, nll in (("deep_ensemble", 1.0 + k), ("gaussian_process", 0.5), ("a_new_one", 500.0)):
                lines.append({
                    "environment": 0, "device": "cpu", "kind": kind, "set": "yacht",
                    "method": method, "split": k, "scores": {"nll": nll, "rmse": 1.0, "crps": 1.0, "coverage": 0.9},
                    "seconds": 3.0, "unit_seconds": 0.5,
                })  # fmt: skip
    (results / "quality-yacht.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert runner.main(study.STUDY, ["--report", "--out", str(results), "--docs", str(docs)]) == 0
    text = (docs / "quality.md").read_text(encoding="utf-8")
    assert "| deep ensemble, 40 epochs | – | – | – | – | – | 10.50 ± 1.32 |" in text
    assert "| deep ensemble, 40 epochs | – | – | – | – | – | 1.50 ± 0.50 (2) |" in text
    assert "| GP, ARD RBF | – | – | – | – | – | **0.50 ± 0.00** |" in text
    assert "a_new_one" in text
    assert "*1.18*" in text
    assert (docs / "quality.png").stat().st_size > 1000
    assert (docs / "quality_gap.png").stat().st_size > 1000
