"""The command line and the example under torchrun."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from ntkgp.cli import app
from tests.support.helpers import ROOT
from tests.support.typechecker import switched_off

TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
QUICK = ["--width", "4", "--warm-networks", "0", "--steps", "3", "--starts", "1", "--rank", "8", "--max-rows-tuning", "60"]


def python(*arguments: str, folder: Path, expect: int = 0) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NTKGP_SMALL": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=folder, env=environment, timeout=300, check=False
    )
    assert (done.returncode == 0) == (expect == 0), done.stderr
    return done.stdout if expect == 0 else done.stderr


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three Parquet files of 10,500 rows, very unequal; the second rank alone sees the third category."""
    folder, rng = tmp_path_factory.mktemp("table"), np.random.default_rng(0)
    rows = np.arange(10_500)  # beyond those that leaving one out is done for, which takes a while
    size, kind = rng.normal(size=len(rows)), np.where(rows < 10_400, rng.choice(["a", "b"], len(rows)), "c")
    y = np.sin(2 * size) + (kind == "b") + 0.1 * rng.normal(size=len(rows))
    table = pl.DataFrame({"size": size, "kind": kind, "y": y})
    (folder / "shards").mkdir()
    for k, (start, stop) in enumerate([(0, 6000), (6000, 10_450), (10_450, 10_500)]):
        table[start:stop].write_parquet(folder / "shards" / f"part-{k}.parquet")
    table[::1000].drop("y").write_parquet(folder / "new.parquet")
    return folder


def here(*arguments: str) -> str:
    """A command of one process needs none of its own."""
    with switched_off():
        done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout


def predictions(folder: Path, model: str) -> np.ndarray:
    here("predict", str(folder / model), str(folder / "new.parquet"), "--out", str(folder / f"{model}.csv"), "--quiet")
    return pl.read_csv(folder / f"{model}.csv").select("mean", "epistemic_std", "total_std").to_numpy()


def test_parquet_shards_are_fitted_as_one_table(shards: Path):
    command = ["fit", str(shards / "shards"), "--target", "y", *QUICK, "--json", "--out"]
    alone = json.loads(here(*command, str(shards / "alone")))
    both = json.loads(python(*TORCHRUN, "-m", "ntkgp", *command, "both", folder=shards))  # rank 0 alone prints
    assert (alone["rows"], both["rows"], both["ranks"]) == (10_500, 10_500, 2)
    for name in ("log_marginal_likelihood", "leave_one_out", "features", "parameters", "rank", "side"):
        assert both[name] == (alone[name] if isinstance(alone[name], str) else pytest.approx(alone[name], rel=1e-4)), name
    np.testing.assert_allclose(predictions(shards, "both"), predictions(shards, "alone"), rtol=1e-3, atol=1e-3)


def test_an_error_of_one_rank_is_everybodys(shards: Path):
    (shards / "bad").mkdir()
    good = pl.read_parquet(shards / "shards" / "part-2.parquet")
    good.write_parquet(shards / "bad" / "part-0.parquet")
    good.with_columns(pl.lit(None, dtype=pl.Float64).alias("size")).write_parquet(shards / "bad" / "part-1.parquet")
    shown = python(*TORCHRUN, "-m", "ntkgp", "fit", "bad", "--target", "y", *QUICK, folder=shards, expect=1)
    assert "error: " in shown
    assert "rank 1 stopped: TableError" in shown
    assert "column 'size' has a missing value (empty, NA, NaN, null, ? or the like) in 50 of 50 rows" in shown


def test_the_example(tmp_path: Path):
    shown = python(*TORCHRUN, str(ROOT / "examples" / "distributed.py"), folder=tmp_path)
    assert "2 process(es), 307 points" in shown
