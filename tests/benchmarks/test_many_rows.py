"""The benchmark of many rows, in a small form."""

from pathlib import Path

import pytest

from benchmarks.speed import million_rows_cli
from benchmarks.speed.report.million_rows_cli import section
from ntkgp.apps.figure1.figure import environment


def test_the_benchmark_of_many_rows_in_a_small_form(tmp_path: Path):
    """With a rank, so of low rank; the processes are real."""
    small = ["--width", "4", "--warm-networks", "0", "--steps", "3", "--starts", "1", "--max-rows-tuning", "200", "--rank", "8"]
    record = million_rows_cli.run(12_000, tmp_path, small)
    assert record["said"]["method"] == "LowRank"
    assert record["said"]["side"] == "matrix"
    assert record["said"]["accuracy"] <= 1e-5
    assert record["mean_only_differs_by"] < 1e-6
    assert record["against_exact"]["inside_the_bracket"] == pytest.approx(1, abs=0.005)
    assert record["against_exact"]["mean_error_in_stds_max"] < 0.01
    assert record["scores"]["rmse"] < record["scores"]["std_of_target"]
    assert record["scores"]["nll"] > record["scores"]["nll_of_the_truth"]
    assert 0 < record["fit"]["peak_gib"] < 24
    assert "one pass over the points" in (tmp_path / "progress.log").read_text()  # the progress bars
    assert "A million rows" in section({**record, "environment": environment()})
