"""The comparison with other methods: each in a small form, budgets counted, runs that resume, report and picture."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.alternatives import __main__ as runner
from benchmarks.alternatives import protocol, report, runs
from benchmarks.alternatives.registry import METHODS
from benchmarks.quality.data import Split, load
from benchmarks.quality.scores import Forecast, score

FOLDER = Path(report.__file__).parent
NEEDS = {"mean_field": "pyro", **dict.fromkeys(("laplace_full", "laplace_kron", "laplace_last_layer"), "laplace")}
TRAINED = [name for name, method in METHODS.items() if method.trained]
NTK = ["ntk_exact", "ntk_ensemble", "ntk_trained"]


@pytest.fixture(scope="module")
def split(uci: Path) -> Split:
    return load(uci, "yacht", "standard", 0)


def forecast(name: str, split: Split, seed: int = 0) -> Forecast:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    options = {"steps": 300} if METHODS[name].trained else {}
    return METHODS[name].run(split.blind(), seed=seed, device="cpu", **options)


@pytest.mark.parametrize("name", [*TRAINED, *NTK])
@pytest.mark.filterwarnings("ignore")
def test_every_method_learns_an_easy_function(name: str, split: Split):
    """Better than knowing nothing, with both kinds of std, the same again with the same seed, and its fits counted."""
    got = forecast(name, split)
    blank = score(split.forecast(torch.zeros(20), torch.ones(20)), split.y_test)
    assert score(got, split.y_test)["nll"] < blank["nll"]
    assert score(got, split.y_test)["rmse"] < 0.7 * blank["rmse"]
    assert got.epistemic is not None
    for std in (got.std, got.epistemic):
        assert bool(torch.isfinite(std).all() and (std > 0).all())
    assert bool((got.std > got.epistemic).all())
    assert got.chosen["tuning_fits"] == METHODS[name].fits
    again = forecast(name, split)
    assert torch.equal(again.mean, got.mean)
    assert torch.equal(again.std, got.std)


@pytest.mark.filterwarnings("ignore")
def test_networks_that_stand_for_the_exact_posterior_meet_it(split: Split):
    """To the Monte-Carlo error of 20 members and of 12 tail targets beyond rank 100."""
    exact, ensemble, trained = (forecast(name, split) for name in NTK)
    assert exact.epistemic is not None
    assert ensemble.epistemic is not None
    assert trained.epistemic is not None
    size = exact.epistemic.norm()
    assert float((ensemble.epistemic - exact.epistemic).norm() / size) < 0.3
    assert float((trained.epistemic - exact.epistemic).norm() / size) < 0.1
    assert float((trained.mean - exact.mean).norm() / (exact.mean - split.center).norm()) < 0.05


def test_the_grid_is_the_budget():
    """Four values each, so that nobody has more fits than another."""
    from benchmarks.alternatives import epinet, variational
    from benchmarks.quality.dropout import RATES
    from benchmarks.quality.search import PENALTIES

    for grid in (epinet.SCALES, variational.PRIORS, RATES, PENALTIES):
        assert len(set(grid)) == len(grid) == protocol.FITS
    assert all(METHODS[name].fits == protocol.FITS for name in TRAINED)


class Scripted(protocol.Learner):
    """Its candidates predict c times the truth, without learning anything."""

    def __init__(self, split: Split, values):
        super().__init__(len(values), (split.x.shape[1], 1), torch.relu)
        self.values = torch.tensor(values).unsqueeze(1)

    def loss(self, x, y):
        return 0.0 * self(x).sum()

    def moments(self, x, precise):
        mean = self.values * x[:, 0]
        return protocol.Moments(mean, torch.full_like(mean, 1e-4))


def test_held_out_points_choose_the_value_and_the_noise():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 2, generator=generator)
    truth = Split.of(x, x[:, 0] + 0.1 * torch.randn(400, generator=generator), x[:5], x[:5, 0])
    choice = protocol.choose(Scripted, truth, (0.0, 0.5, 1.0, 1.5), seed=0, steps=50)
    assert choice.value == 1.0
    assert choice.noise == pytest.approx(0.1, rel=0.25)


def test_no_method_is_long():
    """The whole of a method under 120 lines, wherever it lives."""
    names = [path for path in FOLDER.glob("*.py") if path.name not in ("report.py", "figure.py", "toys.py")]
    assert len(names) > 8
    for path in names:
        assert len(path.read_text().splitlines()) < 120, path.name


# Runs and report


def test_runs_resume_and_failures_are_told(uci: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    task = runs.Task(("mc_dropout", "gaussian_process"), "yacht", "ood", 1)
    monkeypatch.setattr(runs, "unit", lambda *_: 0.5)

    def broken(*_, **__):
        raise RuntimeError("nothing learnt")

    monkeypatch.setitem(METHODS, "gaussian_process", replace(METHODS["gaussian_process"], run=broken))
    lines = runs.complete(task, uci, tmp_path, True)
    assert [line.split()[0] for line in lines] == ["yacht-ood-1-mc_dropout", "yacht-ood-1-gaussian_process"]
    assert "nothing learnt" in lines[1]
    record = json.loads((tmp_path / "yacht-ood-1-mc_dropout.json").read_text())
    assert 0 <= record["auroc"]["epistemic"] <= 1
    assert 0 < record["query_seconds"] < record["seconds"]
    assert record["settings"]["tuning_fits"] == protocol.FITS
    again = runs.complete(task, uci, tmp_path, True)
    assert [line.split()[0] for line in again] == ["yacht-ood-1-gaussian_process"]
    assert runner.complete.__module__ == "benchmarks.alternatives.runs"  # where a spawned process finds it


def test_a_family_is_run_together(uci: Path):
    found = list(runs.tasks(uci, ["yacht"], ["laplace_full", "laplace_kron", "epinet"], ["gap"], [1]))
    assert [task.methods for task in found] == [("laplace_full", "laplace_kron"), ("epinet",)]
    assert [task.split for task in runs.tasks(uci, ["yacht"], ["epinet"], ["standard"], [])] == [0, 1, 2]


def _run(method: str, name: str, kind: str, split: int, value: float) -> dict:
    scores = {"auroc": {"epistemic": value}} if kind == "ood" else {
        "scores": {"nll": value, "rmse": 1.0, "crps": 1.0, "coverage": 0.9}}  # fmt: skip
    return {"environment": {"ntkgp": "0", "torch": "2", "python": "3"}, "device": "cpu", "kind": kind, "set": name,
            "split": split, "method": method, **scores, "seconds": 3.0, "query_seconds": 1.0, "queries": 500,
            "unit_seconds": 0.5}  # fmt: skip


def test_the_report_is_made_of_a_handful_of_runs(tmp_path: Path):
    results, docs, empty = tmp_path / "results", tmp_path / "docs", tmp_path / "empty"
    results.mkdir()
    empty.mkdir()
    for kind in ("standard", "gap", "ood"):
        for name in report.SETS:
            for k in range(report.splits(kind, name)):
                for method, value in (("table", 1.0), ("deep_ensemble", 0.5 + 0.01 * k), ("mc_dropout", 2.0)):
                    record = _run(method, name, kind, k, value)
                    (results / f"{name}-{kind}-{k}-{method}.json").write_text(json.dumps(record))
    (results / "yacht-gap-0-epinet.json").write_text(json.dumps(_run("epinet", "yacht", "gap", 0, 0.1)))
    report.main(["--results", str(results), "--quality", str(empty), "--ood", str(empty), "--docs", str(docs)])
    text = (docs / "alternatives.md").read_text(encoding="utf-8")
    assert "| deep ensemble | 0.59 ± 0.01 |" in text
    assert "| epinet | – | – | – | – | – | 0.10 (1) | – |" in text  # no rank without all sets
    assert "deep ensemble has 1.0" in text  # ours is not the best, and that is said
    assert "wine, gap splits: deep ensemble (-0.45 ± 0.01)" in text
    assert "| MC dropout | +1.00 ± 0.00 |" in text
    assert "| MC dropout | 4 | 4 | 4 | 4 | 4 | 4 |" in text  # of both parts: training, and a thousand queries
    assert "| MC dropout | rate, epochs, noise | 4 | 1 |" in text
    ranks = report.ranks(report.values(report.records(results, empty, empty), "standard", "nll"), "nll")
    assert ranks == {"table": 2.0, "deep_ensemble": 1.0, "mc_dropout": 3.0}


def test_ranks_are_of_the_splits_that_all_have():
    found = {("table", name): {0: 1.0, 1: 9.0} for name in report.SETS} | {("epinet", name): {0: 2.0} for name in report.SETS}
    assert report.ranks(found, "nll") == {"table": 1.0, "epinet": 2.0}
    assert report.ranks(found, "auroc") == {"table": 2.0, "epinet": 1.0}
    found |= {("mc_dropout", name): {1: 0.0} for name in report.SETS}
    assert report.ranks(found, "nll") == {}  # no split that all have


def test_runs_of_the_quality_benchmark_are_taken_where_there_are_none(tmp_path: Path):
    own, quality, ood = (tmp_path / name for name in ("own", "quality", "ood"))
    for where, value in ((own, 1.0), (quality, 2.0)):
        where.mkdir()
        for k in range(1 if where == own else 2):
            (where / f"{k}.json").write_text(json.dumps(_run("table", "yacht", "standard", k, value)))
    ood.mkdir()
    (quality / "x.json").write_text(json.dumps(_run("deep_ensemble", "yacht", "standard", 0, 9.0)))  # another protocol
    found = report.values(report.records(own, quality, ood), "standard", "nll")
    assert found == {("table", "yacht"): {0: 1.0, 1: 2.0}}


def test_the_picture_in_a_small_form(tmp_path: Path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("laplace")
    pytest.importorskip("pyro")
    command = [sys.executable, "-m", "benchmarks.alternatives.figure", "--results", str(tmp_path), "--docs", str(tmp_path)]
    root = FOLDER.parents[1]
    path = os.pathsep.join([str(root / "src"), str(root)])
    env = {**os.environ, "NTKGP_SMALL": "1", "PYTHONPATH": path}
    done = subprocess.run(command, check=False, env=env, cwd=root, timeout=1200, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "figure.json").read_text())["rows"]
    assert len(rows) == 11
    for row in rows:
        for found in row["panels"].values():
            assert all(math.isfinite(value) and value >= 0 for value in found["std"])
    full = next(row for row in rows if row["label"] == "Laplace, full")
    assert all(found["std_error"] < 1e-4 for found in full["panels"].values())  # the same posterior by another library
    assert (tmp_path / "alternatives.png").stat().st_size > 10_000
