"""The commands for tables: what they write, what they say, and how they fail."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

import ntkgp
from benchmarks.speed import million_rows_cli
from benchmarks.speed.report.million_rows_cli import section
from ntkgp import table_folder, table_model
from ntkgp.cli import app
from ntkgp.figure1 import environment
from ntkgp.group_noise import PSEUDO, group_noise
from ntkgp.structure import describe, rebuild
from ntkgp.table_files import Column, encode

SMALL = ["--width", "8", "--steps", "4", "--starts", "1"]


def run(*arguments: Any, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == code, result.output
    return result


def said(result: Result) -> str:
    """What went to standard error, unwrapped."""
    return " ".join(result.stderr.replace("│", " ").split())


def houses(count: int, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    size, town, lift = rng.uniform(20, 200, count), rng.choice(["Ghent", "Lier"], count), rng.random(count) < 0.5
    noise = rng.choice([4.0, 400.0], count)
    price = size * (1 + 0.5 * (town == "Lier")) + 30 * lift + np.sqrt(noise) * rng.normal(size=count)
    return pl.DataFrame({"size": size, "town": town, "lift": lift, "sensor": np.where(noise > 4, "bad", "good"),
                         "variance": noise, "price": price, "rent": price / 50})  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables and a model."""
    home = tmp_path_factory.mktemp("home")
    houses(60).write_csv(home / "train.csv")
    houses(60).write_parquet(home / "train.parquet")
    houses(40, seed=1).write_csv(home / "test.csv")
    run(
        "fit",
        home / "train.csv",
        "--target",
        "price",
        "--ignore",
        "rent",
        "--ignore",
        "variance",
        "--out",
        home / "model",
        *SMALL,
    )
    return home


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several fits without trained features, which take most of the time of a small one."""
    monkeypatch.setattr(
        table_model, "tune_table", lambda x, y, **options: ntkgp.tune_table(x, y, **{**options, "warm_networks": 0})
    )


def predictions(model: Path, table: pl.DataFrame, folder: Path, *options: str) -> tuple[pl.DataFrame, Result]:
    table.write_csv(folder / "new.csv")
    result = run("predict", model, folder / "new.csv", "--out", folder / "out.csv", *options)
    return pl.read_csv(folder / "out.csv"), result


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
    expected = ntkgp.evaluate(p, torch.tensor(test["price"].to_numpy()).unsqueeze(1))
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


def test_categories_never_seen_count_as_none_and_are_named(home: Path, tmp_path: Path):
    new = houses(3).with_columns(town=pl.Series(["Ghent", "Paris", "Rome"]))
    out, result = predictions(home / "model", new, tmp_path)
    assert "warning: column 'town' of" in said(result)
    assert "Paris, Rome" in said(result)
    assert out["mean"].is_finite().all()
    column = Column("town", "category", ("Ghent", "Lier"))
    assert encode(new, [column]).tolist() == [[1, 0], [0, 0], [0, 0]]


def test_a_category_of_digits_stays_a_category(tmp_path: Path):
    """A file with only the digits among the categories would otherwise be read as numbers."""
    pl.DataFrame({"code": ["1", "2", "x"] * 5, "y": np.arange(15.0)}).write_csv(tmp_path / "train.csv")
    run("fit", tmp_path / "train.csv", "--target", "y", "--out", tmp_path / "model", "--quiet", *SMALL)
    out, result = predictions(tmp_path / "model", pl.DataFrame({"code": [1, 2]}), tmp_path)
    assert len(out) == 2
    assert "warning" not in result.stderr


def test_missing_values_are_named_and_can_be_dropped(home: Path, tmp_path: Path):
    holes = houses(30).with_columns(size=pl.Series([None if k in (3, 7) else float(k) for k in range(30)]))
    holes.write_csv(tmp_path / "holes.csv")
    fit = ["fit", tmp_path / "holes.csv", "--target", "price", "--out", tmp_path / "model", *SMALL]
    refused = run(*fit, code=2)
    assert "column 'size' has no value in 2 of 30 rows, first in rows 4, 8" in said(refused)
    assert "--drop-missing" in said(refused)
    assert json.loads(run(*fit, "--drop-missing", "--json").stdout)["rows"] == 28
    assert "'size'" in said(run("predict", home / "model", tmp_path / "holes.csv", code=2))
    out, result = predictions(home / "model", holes, tmp_path, "--drop-missing")
    assert "28 of 30 rows" in result.stdout
    assert out["mean"].is_null().arg_true().to_list() == [3, 7]
    whole, _ = predictions(home / "model", holes.drop_nulls(), tmp_path)
    np.testing.assert_allclose(out.drop_nulls().to_numpy(), whole.to_numpy(), rtol=1e-9)


def test_columns_that_are_missing_retyped_or_unknown_are_named(home: Path, tmp_path: Path):
    def attempt(table: pl.DataFrame, code: int) -> str:
        table.write_parquet(tmp_path / "new.parquet")
        return said(run("predict", home / "model", tmp_path / "new.parquet", "--out", tmp_path / "p.csv", code=code))

    assert "has no column 'town'; its columns are 'size'" in attempt(houses(3).drop("town"), 2)
    retyped = attempt(houses(3).with_columns(size=pl.Series(["small", "large", "large"])), 2)
    assert "column 'size' held numbers when the model was fitted and is of type String here, such as 'small'" in retyped
    assert "'lift' held booleans" in attempt(houses(3).with_columns(lift=pl.Series([0, 1, 1])), 2)
    assert "columns that the training table had not, and which are not used: colour" in attempt(
        houses(3).with_columns(colour=pl.lit("red")), 0
    )


def test_known_noise(home: Path, tmp_path: Path):
    fit = ["fit", home / "train.csv", "--target", "price", "--ignore", "rent", "--out", tmp_path / "model", *SMALL]
    run(*fit, "--noise-column", "variance")
    new = houses(6)
    out, _ = predictions(tmp_path / "model", new, tmp_path)
    np.testing.assert_allclose(out["total_std"] ** 2, out["epistemic_std"] ** 2 + new["variance"], rtol=1e-9)
    less, result = predictions(tmp_path / "model", new.drop("variance"), tmp_path)
    assert "no column 'variance' of noise variances: total_std, lower and upper are empty" in said(result)
    assert less["total_std"].null_count() == 6
    np.testing.assert_allclose(less["mean"], out["mean"], rtol=1e-9)
    new.with_columns(variance=0.0).write_csv(tmp_path / "zero.csv")
    zero = run("evaluate", tmp_path / "model", tmp_path / "zero.csv", "--out", tmp_path / "report", code=2)
    assert "column 'variance' must hold positive variances, got 0 in row 1" in said(zero)
    assert "one --noise-column for each" in said(run(*fit, "--noise-column", "variance", "--group-noise", "town", code=2))


@pytest.mark.usefixtures("_quick")
def test_noise_of_groups(tmp_path: Path):
    """Standard deviations of 2 and 20 are told apart, and used."""
    houses(100).drop("variance", "rent").write_csv(tmp_path / "train.csv")
    options = ["--target", "price", "--group-noise", "sensor", "--width", "8", "--steps", "15", "--starts", "1"]
    record = json.loads(run("fit", tmp_path / "train.csv", *options, "--out", tmp_path / "model", "--json").stdout)
    noise = record["noise_std"]["price"]
    assert 1 < noise["good"] < 4
    assert 14 < noise["bad"] < 28
    new = houses(3, seed=5).with_columns(sensor=pl.Series(["good", "bad", "new"]))
    out, result = predictions(tmp_path / "model", new, tmp_path)
    spread = (out["total_std"] ** 2 - out["epistemic_std"] ** 2).sqrt()
    np.testing.assert_allclose(spread[:2], [noise["good"], noise["bad"]], rtol=1e-6)
    assert noise["good"] < spread[2] < noise["bad"]
    assert "new; their noise is the mean of the others'" in said(result)


def test_noise_of_groups_is_where_the_likelihood_is_flat():
    g = torch.Generator().manual_seed(0)
    x = torch.rand(150, generator=g, dtype=torch.float64) * 6
    kernel = torch.exp(-0.5 * (x[:, None] - x).square())
    groups, truth = torch.arange(150) % 3, torch.tensor([0.01, 0.1, 1.0], dtype=torch.float64)
    draw = torch.randn(2, 150, generator=g, dtype=torch.float64)
    r = torch.linalg.cholesky(kernel + 1e-9 * torch.eye(150)) @ draw[0] + truth[groups].sqrt() * draw[1]
    start = torch.full((3,), 0.4, dtype=torch.float64)
    noise = group_noise(kernel, r, groups, start).requires_grad_()
    law = torch.distributions.MultivariateNormal(torch.zeros_like(r), kernel + noise[groups].diag())
    objective = law.log_prob(r) - PSEUDO / 2 * (noise.log() + start / noise).sum()
    (slope,) = torch.autograd.grad(objective, noise)
    assert float((slope * noise.detach()).abs().max()) < 0.05  # nats a doubling, beside the 25 of half a group


def test_beyond_the_dense_limit_the_posterior_is_of_low_rank(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(table_model, "DENSE", 50)
    monkeypatch.setattr(table_model, "ROWS", 16)  # of several blocks
    options = ["--target", "price", "--ignore", "rent", "--ignore", "variance", *SMALL]
    fit = run("fit", home / "train.csv", *options, "--rank", "50", "--out", tmp_path / "model", "--json")
    record = json.loads(fit.stdout)
    assert record["method"] == "LowRank"
    assert record["rank"] == 50
    assert record["accuracy"] <= 1e-4
    test = pl.read_csv(home / "test.csv")
    out, _ = predictions(tmp_path / "model", test, tmp_path)
    assert np.corrcoef(out["mean"], test["price"])[0, 1] > 0.9
    assert np.mean(((out["lower"] < test["price"]) & (test["price"] < out["upper"])).to_numpy()) > 0.8
    model = table_folder.load(tmp_path / "model")
    assert next(model.module.parameters()).dtype == torch.float32
    p = model.predict(test)
    assert bool((p.lower <= p.variance).all())
    assert bool((p.variance <= p.upper).all())


def test_the_mean_alone(home: Path, tmp_path: Path):
    new = houses(30, seed=2)
    whole, _ = predictions(home / "model", new, tmp_path)
    alone, _ = predictions(home / "model", new, tmp_path, "--mean-only")
    assert alone.columns == ["mean"]
    np.testing.assert_allclose(alone["mean"], whole["mean"], rtol=1e-6)


@pytest.mark.usefixtures("_quick")
def test_noise_is_judged_by_rows_beyond_a_first_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tuning on 20 rows cannot tell the noise; 300 rows beyond a fit to 400 can."""
    for name, value in {"DENSE": 50, "PILOT": 400, "JUDGES": 300}.items():
        monkeypatch.setattr(table_model, name, value)
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (800, 2))
    pl.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": x[:, 0] + 0.3 * rng.normal(size=800)}).write_csv(tmp_path / "t.csv")
    options = ["--target", "y", "--max-rows-tuning", "20", "--rank", "20", *SMALL]
    judged = run("fit", tmp_path / "t.csv", *options, "--out", tmp_path / "model")
    assert "judged by 300 rows" in judged.stdout
    facts = json.loads((tmp_path / "model" / "model.json").read_text())
    assert facts["fitted"]["noise_judged_on"] == 300
    assert facts["noise"]["variances"][0][0] ** 0.5 == pytest.approx(0.3, rel=0.1)


def test_networks_shrink_and_train_longer_as_rows_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[dict[str, Any]] = []

    def noted(x: torch.Tensor, y: torch.Tensor, **options: Any) -> ntkgp.Tuned:
        asked.append(options)
        return ntkgp.tune_table(x, y, **{**options, "width": 4, "local_width": 4, "warm_networks": 0})

    monkeypatch.setattr(table_model, "tune_table", noted)
    houses(60).write_csv(tmp_path / "t.csv")
    options = ["--target", "price", "--steps", "1", "--starts", "1", "--out", tmp_path / "model", "--quiet"]
    for dense, many in [(100, 200), (50, 100), (20, 50)]:
        monkeypatch.setattr(table_model, "DENSE", dense)
        monkeypatch.setattr(table_model, "MANY", many)
        run("fit", tmp_path / "t.csv", *options)
    assert [one["width"] for one in asked] == [512, 64, 32]
    assert [one["warm_width"] for one in asked] == [64, 64, 32]
    assert [one["warm_networks"] for one in asked] == [6, 2, 2]
    assert [max(one["warm_steps"]) for one in asked] == [200, 4000, 16000]
    run("fit", tmp_path / "t.csv", *options, "--width", "8", "--warm-networks", "3")
    assert (asked[-1]["width"], asked[-1]["warm_width"], asked[-1]["warm_networks"]) == (8, 8, 3)


def test_devices_that_are_not_there(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for command in (["fit", home / "train.csv", "--target", "price"], ["predict", home / "model", home / "test.csv"],
                    ["evaluate", home / "model", home / "test.csv"]):  # fmt: skip
        assert "finds no CUDA device here" in said(run(*command, "--device", "cuda", code=2))
    assert "expected cpu, cuda or cuda:1" in said(run("predict", home / "model", home / "test.csv", "--device", "gpu", code=2))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert "finds 1 CUDA device here" in said(run("predict", home / "model", home / "test.csv", "--device", "cuda:1", code=2))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dense", [8000, 20], ids=["exact", "low rank"])
def test_from_one_device_to_another(home: Path, tmp_path: Path, dense: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(table_model, "DENSE", dense)
    options = ["--target", "price", "--ignore", "rent", "--ignore", "variance", "--device", "cuda", *SMALL]
    run("fit", home / "train.csv", *options, "--out", tmp_path / "model")
    run("evaluate", tmp_path / "model", home / "test.csv", "--device", "cuda", "--out", tmp_path / "report")
    there, _ = predictions(tmp_path / "model", houses(20, seed=2), tmp_path, "--device", "cuda")
    here, _ = predictions(tmp_path / "model", houses(20, seed=2), tmp_path, "--device", "cpu")
    np.testing.assert_allclose(here.to_numpy(), there.to_numpy(), rtol=1e-3)


def test_it_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "ntkgp", "--help"], capture_output=True, text=True, check=True)
    assert "Usage: ntkgp" in done.stdout


def test_the_benchmark_of_many_rows_in_a_small_form(tmp_path: Path):
    """Beyond 8,000 rows, so of low rank; the processes are real."""
    small = ["--width", "4", "--warm-networks", "0", "--steps", "3", "--starts", "1", "--max-rows-tuning", "200", "--rank", "8"]
    record = million_rows_cli.run(12_000, tmp_path, small)
    assert record["said"]["method"] == "LowRank"
    assert record["said"]["side"] == "matrix"
    assert record["said"]["accuracy"] <= 1e-5
    assert record["mean_only_differs_by"] < 1e-6
    assert record["against_exact"]["inside_the_bracket"] == 1
    assert record["against_exact"]["mean_error_in_stds_max"] < 0.01
    assert record["scores"]["rmse"] < record["scores"]["std_of_target"]
    assert record["scores"]["nll"] > record["scores"]["nll_of_the_truth"]
    assert 0 < record["fit"]["peak_gib"] < 24
    assert "one pass over the rows" in (tmp_path / "progress.log").read_text()  # the progress bars
    assert "A million rows" in section({**record, "environment": environment()})


def test_a_damaged_or_foreign_model_is_refused(home: Path, tmp_path: Path):
    def attempt() -> str:
        return said(run("predict", tmp_path / "model", home / "test.csv", "--out", tmp_path / "p.csv", code=2))

    assert "there is no model in" in attempt()
    for name in (table_folder.NETWORK, table_folder.POSTERIOR):
        shutil.copytree(home / "model", tmp_path / "model")
        path = tmp_path / "model" / name
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        path.write_bytes(content)
        assert f"{name} is damaged, or belongs to another model" in attempt()
        path.unlink()
        assert f"{name} is missing" in attempt()
        shutil.rmtree(tmp_path / "model")
    shutil.copytree(home / "model", tmp_path / "model")
    path = tmp_path / "model" / table_folder.FACTS
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, "targets": ["rent"]}))
    assert "is not what its sha256 says" in attempt()
    path.write_text(json.dumps({**facts, "version": 2}))
    assert "expected 'ntkgp table model' of version 1" in attempt()
    path.write_text(path.read_text()[:100])
    assert "is damaged" in attempt()


def test_tables_that_cannot_be_used(home: Path, tmp_path: Path):
    def attempt(table: pl.DataFrame | str, *options: str) -> str:
        path = tmp_path / "table.csv"
        table.write_csv(path) if isinstance(table, pl.DataFrame) else path.write_text(table)
        return said(run("fit", path, "--target", "y", "--out", tmp_path / "model", *options, *SMALL, code=2))

    numbers = pl.DataFrame({"x": [1.0, 2.0, 3.0], "y": [1.0, 2.0, 3.0]})
    assert "has no column 'z'; its columns are x, y" in attempt(numbers, "--ignore", "z")
    assert "no column left for features" in attempt(numbers, "--ignore", "x")
    assert "'y' must hold numbers, got type String" in attempt(numbers.with_columns(y=pl.lit("a")))
    assert "has no rows" in attempt("x,y\n")
    assert "cannot be read" in attempt("x,y\n1,2\n1,2,3\n")
    names = pl.DataFrame({"id": [f"row {k}" for k in range(101)], "y": np.arange(101.0)})
    assert "'id' holds 101 different texts, such as 'row 0'" in attempt(names)
    pl.DataFrame(
        {"day": pl.date_range(pl.date(2020, 1, 1), pl.date(2020, 1, 3), eager=True), "y": [1.0, 2.0, 3.0]}
    ).write_parquet(tmp_path / "dates.parquet")
    assert "'day' is of type Date" in said(run("fit", tmp_path / "dates.parquet", "--target", "y", code=2))
    assert "there is no file" in said(run("fit", tmp_path / "none.csv", "--target", "y", code=2))
    assert "must end in .csv, .tsv or .parquet" in said(run("fit", home / "model" / "model.json", "--target", "y", code=2))
    assert "expected cpu" in said(run("fit", home / "train.csv", "--target", "price", "--device", "tpu", code=2))


def test_a_number_that_gets_its_decimals_late(tmp_path: Path):
    rows = [f"{k},{k}" for k in range(300)] + ["0.5,1"]
    (tmp_path / "late.csv").write_text("\n".join(["x,y", *rows]) + "\n")
    run("fit", tmp_path / "late.csv", "--target", "y", "--out", tmp_path / "model", "--quiet", *SMALL)


def test_trouble_of_the_machine_is_another_exit_code(home: Path, tmp_path: Path):
    (tmp_path / "file").write_text("")
    options = ["--target", "price", "--out", tmp_path / "file" / "model"]
    assert "error:" in said(run("fit", home / "train.csv", *options, *SMALL, code=1))


@pytest.mark.usefixtures("_quick")
def test_the_page_works_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[1] / "docs" / "command_line.md").read_text(encoding="utf-8")
    tables, commands = (re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE) for kind in ("python", "sh"))
    exec(tables[0], {})
    lines = [line.removeprefix("ntkgp ").split() for line in commands[0].splitlines()]
    assert [line[0] for line in lines] == ["fit", "predict", "evaluate", "fit", "evaluate"]
    for line in lines:
        run(*line, *(SMALL if line[0] == "fit" else []))


def test_help_shows_how():
    for command in ("fit", "predict", "evaluate"):
        assert f"ntkgp {command} " in run(command, "--help").stdout


def test_structure_as_plain_data():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(20, 2, generator=g)
    net = ntkgp.tune_table(x, x[:, 0], width=4, local_width=8, warm_steps=[2], steps=2, starts=1, generator=g).module
    before = torch.get_rng_state()
    again = rebuild(json.loads(json.dumps(describe(net))))
    assert torch.equal(torch.get_rng_state(), before)
    again.load_state_dict(net.state_dict())
    assert torch.equal(again(x), net(x))
    with pytest.raises(TypeError, match="a Conv1d cannot be written as plain data"):
        describe(nn.Sequential(nn.Conv1d(1, 1, 1)))
    with pytest.raises(ValueError, match="a layer 'Evil', which this version of ntkgp does not know"):
        rebuild({"kind": "Evil"})
    for damaged in ({}, {"kind": "Sequential"}, {"kind": "Linear", "in_features": "2", "out_features": 1, "bias": True}):
        with pytest.raises(ValueError, match="the description of the network is damaged"):
            rebuild(damaged)
