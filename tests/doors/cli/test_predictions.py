"""The commands for tables: what they write and say."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import ntkgp
from ntkgp.apps.tables import folder as table_folder
from tests.doors.cli.commands import SMALL, houses, predictions, run
from tests.support.helpers import ROOT


def test_predictions_have_intervals_of_the_level_asked_for(home: Path, tmp_path: Path):
    new = houses(7, seed=2)
    out, result = predictions(home / "model", new, tmp_path)
    assert out.columns == ["mean", "epistemic_std", "total_std", "lower", "upper"]
    assert "7 of 7 rows predicted" in result.stdout
    expected = table_folder.load(home / "model").predict(new)
    low, high = expected.interval(0.95)
    for name, value in {"mean": expected.mean, "epistemic_std": expected.std, "lower": low, "upper": high}.items():
        np.testing.assert_allclose(out[name].to_numpy(), value[:, 0].numpy(), rtol=1e-9)
    assert (out["epistemic_std"] < out["total_std"]).all()
    half, _ = predictions(home / "model", new, tmp_path, "--level", "0.5")
    np.testing.assert_allclose((half["upper"] - half["mean"]) / half["total_std"], 0.67449, rtol=1e-4)
    assert np.corrcoef(out["mean"], new["price"])[0, 1] > 0.9


def test_csv_and_parquet_say_the_same(home: Path, tmp_path: Path):
    options = ["--target", "price", "--ignore", "rent", "--ignore", "variance", *SMALL]
    run("fit", home / "train.parquet", "--out", tmp_path / "model", *options)
    for name in ("out.csv", "out.parquet"):
        run("predict", tmp_path / "model", home / "train.parquet", "--out", tmp_path / name)
    other, _ = predictions(home / "model", houses(60), tmp_path)
    parquet = pl.read_parquet(tmp_path / "out.parquet")
    assert parquet.equals(pl.read_csv(tmp_path / "out.csv"))
    np.testing.assert_allclose(parquet.to_numpy(), other.to_numpy(), rtol=1e-9)


def test_json_is_all_there_is_on_standard_output(home: Path, tmp_path: Path):
    fit = run("fit", home / "train.csv", "--target", "price", "--out", tmp_path / "model", "--json", *SMALL)
    assert "tuning" in fit.stderr  # the progress bar
    record = json.loads(fit.stdout)
    assert record["rows"] == 60
    assert record["method"] == "Exact"
    assert record["noise_std"]["price"] > 0
    predict = run("predict", tmp_path / "model", home / "test.csv", "--out", tmp_path / "p.csv", "--json")
    assert json.loads(predict.stdout) == {
        "predictions": str(tmp_path / "p.csv"), "rows": 40, "predicted": 40, "level": 0.95, "warnings": []
    }  # fmt: skip
    evaluate = run("evaluate", tmp_path / "model", home / "test.csv", "--out", tmp_path / "report", "--json", "--level", "0.8")
    scores = json.loads(evaluate.stdout)["targets"]["price"]
    assert {"nll", "rmse", "crps", "coverage_95", "calibration_error"} <= scores.keys()
    assert scores["level"] == 0.8
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"report.txt", "report.json", "report.png"}


def test_evaluation_is_that_of_the_library(home: Path, tmp_path: Path):
    result = run("evaluate", home / "model", home / "test.csv", "--out", tmp_path)
    test = pl.read_csv(home / "test.csv")
    p = table_folder.load(home / "model").predict(test)
    expected = ntkgp.diagnostics.evaluate(p, torch.tensor(test["price"].to_numpy()).unsqueeze(1))
    assert f"{expected.nll:.4g}" in result.stdout
    assert f"{expected.rmse:.4g}" in result.stdout


def test_several_targets(home: Path, tmp_path: Path):
    targets = ["--target", "price", "--target", "rent"]
    run("fit", home / "train.csv", *targets, "--out", tmp_path / "model", "--quiet", *SMALL)
    out, _ = predictions(tmp_path / "model", houses(5), tmp_path)
    assert out.columns[:2] == ["price_mean", "price_epistemic_std"]
    assert out.columns[5:7] == ["rent_mean", "rent_epistemic_std"]
    np.testing.assert_allclose(out["price_mean"] / out["rent_mean"], 50, rtol=0.3)
    run("evaluate", tmp_path / "model", home / "test.csv", "--out", tmp_path / "report")
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == ["price", "rent"]


def test_the_mean_alone(home: Path, tmp_path: Path):
    new = houses(30, seed=2)
    whole, _ = predictions(home / "model", new, tmp_path)
    alone, _ = predictions(home / "model", new, tmp_path, "--mean-only")
    assert alone.columns == ["mean"]
    np.testing.assert_allclose(alone["mean"], whole["mean"], rtol=1e-6)


def test_it_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "ntkgp", "--help"], capture_output=True, text=True, check=True)
    assert "Usage: ntkgp" in done.stdout


@pytest.mark.usefixtures("_quick")
def test_the_page_works_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
    tables, commands = (re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE) for kind in ("python", "sh"))
    exec(tables[0], {})
    lines = [line.removeprefix("ntkgp ").split() for line in commands[0].splitlines()]
    assert [line[0] for line in lines] == ["fit", "predict", "evaluate", "fit", "evaluate"]
    for line in lines:
        run(*line, *(SMALL if line[0] == "fit" else []))


def test_help_shows_how():
    for command in ("fit", "predict", "evaluate"):
        assert f"ntkgp {command} " in run(command, "--help").stdout
