"""One model for all tests of the commands, and a way to do without trained features."""

from pathlib import Path

import pytest

import ntkgp
from ntkgp.apps.tables import fitting
from tests.doors.cli.commands import SMALL, houses, run


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables and a model, which tests read and leave alone."""
    home = tmp_path_factory.mktemp("home")
    houses(60).write_csv(home / "train.csv")
    houses(60).write_parquet(home / "train.parquet")
    houses(40, seed=1).write_csv(home / "test.csv")
    ignored = ["--ignore", "rent", "--ignore", "variance"]
    run("fit", home / "train.csv", "--target", "price", *ignored, "--out", home / "model", *SMALL)
    return home


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several fits without trained features, which take most of the time of a small one."""
    monkeypatch.setattr(
        fitting, "tune_table", lambda x, y, **options: ntkgp.tune_table(x, y, **{**options, "warm_networks": 0})
    )
