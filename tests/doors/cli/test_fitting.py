"""How the commands fit: noise, low rank beyond the dense limit, devices, folders of models."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import ntkgp
from ntkgp.apps.tables import fitting, named
from ntkgp.apps.tables import folder as table_folder
from ntkgp.apps.tables import options as options_module
from tests.doors.cli.commands import SMALL, houses, predictions, run, said


def set_dense_limit(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    for limit in ("FEW_ROWS", "INFINITE_ROWS"):
        monkeypatch.setattr(options_module, limit, {"cpu": rows, "cuda": rows})


def test_known_noise(home: Path, tmp_path: Path):
    fit = ["fit", home / "train.csv", "--target", "price", "--ignore", "rent", "--out", tmp_path / "model", *SMALL]
    run(*fit, "--noise-column", "variance")
    new = houses(6)
    out, _ = predictions(tmp_path / "model", new, tmp_path)
    np.testing.assert_allclose(out["total_std"] ** 2, out["epistemic_std"] ** 2 + new["variance"], rtol=1e-9)
    less, result = predictions(tmp_path / "model", new.drop("variance"), tmp_path)
    assert "no column 'variance' of noise variances: total_std, lower and upper stay empty; add the column" in said(result)
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
    assert "new; their noise is the mean over the training rows" in said(result)


def test_beyond_the_dense_limit_the_posterior_is_of_low_rank(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    set_dense_limit(monkeypatch, 50)
    monkeypatch.setattr(named, "CHUNK_ROWS", 16)  # of several blocks
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
    assert next(model.model.module.parameters()).dtype == torch.float32
    p = model.predict(test)
    assert bool((p.lower <= p.variance).all())
    assert bool((p.variance <= p.upper).all())


@pytest.mark.usefixtures("_quick")
def test_noise_is_judged_by_rows_beyond_a_first_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tuning on 20 rows cannot tell the noise; 300 rows beyond a fit to 400 can."""
    set_dense_limit(monkeypatch, 50)
    for name, value in {"PILOT_ROWS": 400, "JUDGING_ROWS": 300}.items():
        monkeypatch.setattr(fitting, name, value)
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (800, 2))
    pl.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": x[:, 0] + 0.3 * rng.normal(size=800)}).write_csv(tmp_path / "t.csv")
    options = ["--target", "y", "--max-rows-tuning", "20", "--rank", "20", *SMALL]
    judged = run("fit", tmp_path / "t.csv", *options, "--out", tmp_path / "model")
    assert "the noise was estimated from 300 rows" in judged.stdout
    facts = json.loads((tmp_path / "model" / "model.json").read_text())
    assert facts["fitted"]["noise_judged_on"] == 300
    assert facts["noise"]["variances"][0][0] ** 0.5 == pytest.approx(0.3, rel=0.1)


def test_networks_shrink_and_train_longer_as_rows_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[dict[str, Any]] = []

    def noted(x: torch.Tensor, y: torch.Tensor, **options: Any) -> ntkgp.tuning.Tuned:
        asked.append(options)
        return ntkgp.tune_table(x, y, **{**options, "width": 4, "local_width": 4, "warm_networks": 0})

    monkeypatch.setattr(fitting, "tune_table", noted)
    houses(60).write_csv(tmp_path / "t.csv")
    options = ["--target", "price", "--steps", "1", "--starts", "1", "--out", tmp_path / "model", "--force", "--quiet"]
    for dense, many in [(100, 200), (50, 100), (20, 50)]:
        set_dense_limit(monkeypatch, dense)
        monkeypatch.setattr(options_module, "MANY_ROWS", many)
        run("fit", tmp_path / "t.csv", *options)
    assert "width" not in asked[0]  # infinite
    assert [one["width"] for one in asked[1:]] == [64, 32]
    assert [one["warm_width"] for one in asked[1:]] == [64, 32]
    assert [one["warm_networks"] for one in asked[1:]] == [2, 2]
    assert [max(one["warm_steps"]) for one in asked[1:]] == [4000, 16000]
    set_dense_limit(monkeypatch, 100)
    run("fit", tmp_path / "t.csv", *options, "--rank", "5")  # a head needs weights
    assert (asked[-1]["width"], asked[-1]["warm_networks"], asked[-1]["warm_steps"]) == (512, 6, (0, 60, 200))
    set_dense_limit(monkeypatch, 20)
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
    set_dense_limit(monkeypatch, dense)
    options = ["--target", "price", "--ignore", "rent", "--ignore", "variance", "--device", "cuda", *SMALL]
    run("fit", home / "train.csv", *options, "--out", tmp_path / "model")
    run("evaluate", tmp_path / "model", home / "test.csv", "--device", "cuda", "--out", tmp_path / "report")
    there, _ = predictions(tmp_path / "model", houses(20, seed=2), tmp_path, "--device", "cuda")
    here, _ = predictions(tmp_path / "model", houses(20, seed=2), tmp_path, "--device", "cpu")
    np.testing.assert_allclose(here.to_numpy(), there.to_numpy(), rtol=1e-3)


def test_a_damaged_or_foreign_model_is_refused(home: Path, tmp_path: Path):
    def attempt() -> str:
        return said(run("predict", tmp_path / "model", home / "test.csv", "--out", tmp_path / "p.csv", code=2))

    assert "there is no model in" in attempt()
    for part in (table_folder.NETWORK, table_folder.POSTERIOR):
        shutil.copytree(home / "model", tmp_path / "model")
        path = next((tmp_path / "model").glob(f"{part}*"))
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        path.write_bytes(content)
        assert f"{path.name} is damaged, or belongs to another model" in attempt()
        path.unlink()
        assert f"{path.name} is missing" in attempt()
        shutil.rmtree(tmp_path / "model")
    shutil.copytree(home / "model", tmp_path / "model")
    path = tmp_path / "model" / table_folder.FACTS
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, "targets": ["rent"]}))
    assert "content does not match its sha256" in attempt()
    path.write_text(json.dumps({**facts, "version": 3}))
    assert "expected 'ntkgp table model' of version 1 or 2" in attempt()
    path.write_text(path.read_text()[:100])
    assert "is damaged" in attempt()


def test_trouble_of_the_machine_is_another_exit_code(home: Path):
    options = ["--target", "price", "--out", "/proc/ntkgp/model"]  # where even the superuser can create nothing
    assert "error: [Errno 2] cannot write /proc" in said(run("fit", home / "train.csv", *options, *SMALL, code=1))
