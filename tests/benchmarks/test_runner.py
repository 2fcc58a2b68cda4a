"""Results of benchmarks: files that several processes append to, and studies that resume after being killed."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from benchmarks import store
from benchmarks.studies import runner
from benchmarks.studies.runner import Study

ROOT = Path(__file__).parents[2]


def _append(count: int, path: Path) -> int:
    return sum(store.append(path, {"k": k, "by": os.getpid()}, ("k",)) for k in range(count))


def test_processes_may_append_at_once(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    with ProcessPoolExecutor(3, get_context("spawn")) as pool:
        written = list(pool.map(partial(_append, path=path), [60] * 3))
    assert sum(written) == 60
    assert sorted(record["k"] for record in store.read(path)) == list(range(60))
    assert path.read_text().count('{"environment": {') == 1


def test_each_environment_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.jsonl"
    for k, threads in enumerate((1, 2, 1, 2)):
        monkeypatch.setattr(store, "environment", lambda threads=threads: {"threads": threads})
        store.append(path, {"k": k}, packages=("torch", "no-such-package"))
    assert [record["environment"]["threads"] for record in store.read(path)] == [1, 2, 1, 2]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sum(isinstance(line["environment"], dict) for line in lines) == 2
    assert lines[0]["environment"]["packages"]["no-such-package"] == "not installed"


def test_half_a_line_is_dropped(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    store.append(path, {"k": 0})
    with path.open("a") as file:
        file.write('{"environment": 0, "k"')
    assert [record["k"] for record in store.read(path)] == [0]
    store.append(path, {"k": 1})
    assert [record["k"] for record in store.read(path)] == [0, 1]


def test_a_single_run_replaces_the_one_before(tmp_path: Path):
    for value in (1.5, float("inf")):
        path = store.save("one", {"value": value}, tmp_path)
    assert store.load("one", tmp_path)["value"] == float("inf")
    assert list(tmp_path.iterdir()) == [path]


# A study of numbers, run as a command by the last test


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=0.0)


def _jobs(given: argparse.Namespace):
    yield from ({"set": name, "k": k} for name in "ab" for k in range(10))


def _run(job: runner.Job, given: argparse.Namespace) -> dict:
    time.sleep(given.seconds)
    return {"square": job["k"] ** 2}


def _line(record: dict) -> str:
    return str(record["square"])


def _report(records: list[dict], given: argparse.Namespace) -> None:
    print(sum(record["square"] for record in records))


STUDY = Study("numbers", "", ("set", "k"), _options, _jobs, _run, _line, _report, file_by="set")


def test_a_killed_study_resumes(tmp_path: Path):
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), str(ROOT / "tests")])
    command = [sys.executable, __file__, "--jobs", "2", "--seconds", "0.1", "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": path}
    first = subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    first.stdout.readline()  # one run is done
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    done = sum(len(store.read(tmp_path / name)) for name in before)
    assert 0 < done < 20
    second = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert second.stdout.splitlines()[-1] == f"{20 - done} runs, 0 failed"
    assert sorted(STUDY.key(record) for record in STUDY.records(tmp_path)) == [(name, k) for name in "ab" for k in range(10)]
    assert all(
        (tmp_path / name).read_bytes().startswith(content[: content.rfind(b"\n") + 1]) for name, content in before.items()
    )


if __name__ == "__main__":
    raise SystemExit(runner.main(STUDY))
