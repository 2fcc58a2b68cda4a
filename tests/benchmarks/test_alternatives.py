"""The comparison with other methods: each in a small form, budgets counted, runs that resume, report and picture."""

import argparse
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import methods, store
from benchmarks.methods.training import budget
from benchmarks.methods.training.learner import Learner, Moments
from benchmarks.scores import Forecast, score
from benchmarks.studies import runner
from benchmarks.studies.alternatives import study, values
from benchmarks.studies.alternatives.methods import METHODS
from benchmarks.uci import SETS, Split, load

FOLDER = Path(methods.__file__).parent
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
    from benchmarks.methods import epinet, mean_field
    from benchmarks.methods.dropout import RATES
    from benchmarks.methods.training.learner import PENALTIES

    for grid in (epinet.SCALES, mean_field.PRIORS, RATES, PENALTIES):
        assert len(set(grid)) == len(grid) == budget.FITS
    assert all(METHODS[name].fits == budget.FITS for name in TRAINED)


class Scripted(Learner):
    """Its candidates predict c times the truth, without learning anything."""

    def __init__(self, split: Split, values):
        super().__init__(len(values), (split.x.shape[1], 1), torch.relu)
        self.values = torch.tensor(values).unsqueeze(1)

    def loss(self, x, y):
        return 0.0 * self(x).sum()

    def moments(self, x, precise):
        mean = self.values * x[:, 0]
        return Moments(mean, torch.full_like(mean, 1e-4))


def test_held_out_points_choose_the_value_and_the_noise():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 2, generator=generator)
    truth = Split.of(x, x[:, 0] + 0.1 * torch.randn(400, generator=generator), x[:5], x[:5, 0])
    choice = budget.choose(Scripted, truth, (0.0, 0.5, 1.0, 1.5), seed=0, steps=50)
    assert choice.value == 1.0
    assert choice.noise == pytest.approx(0.1, rel=0.25)


def test_no_method_is_long():
    """The whole of a method under 120 lines, wherever it lives."""
    names = list(FOLDER.rglob("*.py"))
    assert len(names) > 8
    for path in names:
        assert len(path.read_text().splitlines()) < 120, path.name


# Runs and report


def test_runs_resume_and_failures_are_told(uci: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    group = [{"set": "yacht", "kind": "ood", "split": 1, "method": name} for name in ("mc_dropout", "gaussian_process")]
    given = argparse.Namespace(data_dir=uci, out=tmp_path, small=True)
    monkeypatch.setattr(study, "unit", lambda *_: 0.5)

    def broken(*_, **__):
        raise RuntimeError("nothing learnt")

    monkeypatch.setitem(METHODS, "gaussian_process", replace(METHODS["gaussian_process"], run=broken))
    lines = runner.complete(group, study.STUDY, given)
    assert [line.split()[0] for line in lines] == ["yacht-ood-1-mc_dropout", "yacht-ood-1-gaussian_process"]
    assert "nothing learnt" in lines[1]
    (record,) = store.read(tmp_path / "alternatives-yacht.jsonl")
    assert study.STUDY.key(record) == ("yacht", "ood", 1, "mc_dropout")
    assert 0 <= record["auroc"]["epistemic"] <= 1
    assert 0 < record["query_seconds"] < record["seconds"]
    assert record["settings"]["tuning_fits"] == budget.FITS
    again = runner.complete(group, study.STUDY, given)
    assert [line.split()[0] for line in again] == ["yacht-ood-1-gaussian_process"]
    assert study.STUDY.run.__module__ == "benchmarks.studies.alternatives.study"  # where a spawned process finds it


def test_a_family_is_run_together(uci: Path):
    def groups(names: list[str], kind: str, splits: list[int]) -> list[list[runner.Job]]:
        given = argparse.Namespace(data_dir=uci, sets=["yacht"], methods=names, kind=[kind], splits=splits)
        return study.STUDY.groups(given)

    found = groups(["laplace_full", "laplace_kron", "epinet"], "gap", [1])
    assert [[job["method"] for job in group] for group in found] == [["laplace_full", "laplace_kron"], ["epinet"]]
    assert [job["split"] for (job,) in groups(["epinet"], "standard", [])] == [0, 1, 2]


def _run(method: str, name: str, kind: str, split: int, value: float) -> dict:
    scores = {"auroc": {"epistemic": value}} if kind == "ood" else {
        "scores": {"nll": value, "rmse": 1.0, "crps": 1.0, "coverage": 0.9}}  # fmt: skip
    return {"environment": 0, "device": "cpu", "kind": kind, "set": name,
            "split": split, "method": method, **scores, "seconds": 3.0, "query_seconds": 1.0, "queries": 500,
            "unit_seconds": 0.5}  # fmt: skip


def _write(folder: Path, prefix: str, runs: list[dict]) -> None:
    for name in {run["set"] for run in runs}:
        lines = [{"environment": {"ntkgp": "0", "torch": "2", "python": "3"}}, *(run for run in runs if run["set"] == name)]
        (folder / f"{prefix}-{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_report_is_made_of_a_handful_of_runs(tmp_path: Path):
    results, docs = tmp_path / "results", tmp_path / "docs"
    results.mkdir()
    runs = [_run("epinet", "yacht", "gap", 0, 0.1)]
    for kind in ("standard", "gap", "ood"):
        for name in SETS:
            for k in range(values.splits(kind, name)):
                for method, value in ((values.OURS, 1.0), ("deep_ensemble", 0.5 + 0.01 * k), ("mc_dropout", 2.0)):
                    runs.append(_run(method, name, kind, k, value))
    _write(results, "alternatives", runs)
    assert runner.main(study.STUDY, ["--report", "--out", str(results), "--docs", str(docs)]) == 0
    text = (docs / "alternatives.md").read_text(encoding="utf-8")
    assert "| deep ensemble | 0.59 ± 0.01 |" in text
    assert "| epinet | – | – | – | – | – | 0.10 (1) | – |" in text  # no rank without all sets
    assert "deep ensemble has 1.0" in text  # ours is not the best, and that is said
    assert "wine, gap splits: deep ensemble (-0.45 ± 0.01)" in text
    assert "| MC dropout | +1.00 ± 0.00 |" in text
    assert "| MC dropout | 4 | 4 | 4 | 4 | 4 | 4 |" in text  # of both parts: training, and a thousand queries
    assert "| MC dropout | rate, epochs, noise | 4 | 1 |" in text
    found = values.with_others(study.STUDY.records(results), results)
    ranks = values.ranks(values.values(found, "standard", "nll"), "nll")
    assert ranks == {"table": 2.0, "deep_ensemble": 1.0, "mc_dropout": 3.0}


def test_ranks_are_of_the_splits_that_all_have():
    found = {("table", name): {0: 1.0, 1: 9.0} for name in SETS} | {("epinet", name): {0: 2.0} for name in SETS}
    assert values.ranks(found, "nll") == {"table": 1.0, "epinet": 2.0}
    assert values.ranks(found, "auroc") == {"table": 2.0, "epinet": 1.0}
    found |= {("mc_dropout", name): {1: 0.0} for name in SETS}
    assert values.ranks(found, "nll") == {}  # no split that all have


def test_runs_of_the_quality_benchmark_are_taken_where_there_are_none(tmp_path: Path):
    _write(tmp_path, "alternatives", [_run("table", "yacht", "standard", 0, 1.0)])
    other = _run("deep_ensemble", "yacht", "standard", 0, 9.0)  # of the quality benchmark's own protocol
    _write(tmp_path, "quality", [*(_run("table", "yacht", "standard", k, 2.0) for k in (0, 1)), other])
    found = values.values(values.with_others(study.STUDY.records(tmp_path), tmp_path), "standard", "nll")
    assert found == {("table", "yacht"): {0: 1.0, 1: 2.0}}


def test_the_picture_in_a_small_form(tmp_path: Path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("laplace")
    pytest.importorskip("pyro")
    command = [sys.executable, "-m", "benchmarks.studies.alternatives.figure", "--out", str(tmp_path), "--docs", str(tmp_path)]
    root = FOLDER.parents[1]
    path = os.pathsep.join([str(root / "src"), str(root)])
    env = {**os.environ, "NTKGP_SMALL": "1", "PYTHONPATH": path}
    for more in ([], ["--report"]):
        done = subprocess.run([*command, *more], check=False, env=env, cwd=root, timeout=1200, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    rows = store.read(tmp_path / "alternatives_figure.jsonl")
    assert len(rows) == 11
    for row in rows:
        for found in row["panels"].values():
            assert all(math.isfinite(value) and value >= 0 for value in found["std"])
    full = next(row for row in rows if row["label"] == "Laplace, full")
    assert all(found["std_error"] < 1e-4 for found in full["panels"].values())  # the same posterior by another library
    assert (tmp_path / "alternatives.png").stat().st_size > 10_000
