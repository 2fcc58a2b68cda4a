"""Run the jobs of a study that have no result yet, in several processes of one thread each, and append every result.

A job is a dictionary of the fields that identify a run; the result has them too. A job that fails is reported, leaves no
result, and the others go on. Stop a study at any time, even by killing it: the same command resumes it. Two commands may run
the same study at once.
"""

import argparse
import traceback
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.page import DOCS
from benchmarks.store import RESULTS, Record, append, read

Job = dict[str, Any]
Given = argparse.Namespace  # the options of the command, with ``out`` and ``docs``


@dataclass(frozen=True)
class Study:
    """A study.

    Args:
        name: of its result files.
        description: what the command prints as its help.
        keys: the fields of a job, in the order in which its label names them.
        options: adds the study's own options to the command.
        jobs: lists all jobs for these options.
        run: computes the result of a job.
        line: what to print about a result.
        report: writes or prints the tables and figures of the results there are.
        file_by: the field whose values have a file each, or None for one file.
        together: jobs with the same value run one after another in one process, since they share work.
        packages: whose versions belong to the environment of a run.
    """

    name: str
    description: str
    keys: tuple[str, ...]
    options: Callable[[argparse.ArgumentParser], None]
    jobs: Callable[[Given], Iterable[Job]]
    run: Callable[[Job, Given], Record]
    line: Callable[[Record], str]
    report: Callable[[list[Record], Given], None]
    file_by: str | None = None
    together: Callable[[Job], Hashable] | None = None
    packages: tuple[str, ...] = ()

    def path(self, job: Job, folder: Path) -> Path:
        """The file of a job's result."""
        return folder / (f"{self.name}.jsonl" if self.file_by is None else f"{self.name}-{job[self.file_by]}.jsonl")

    def key(self, job: Job) -> tuple[Any, ...]:
        """What tells a job or a result from the others."""
        return tuple(job[key] for key in self.keys)

    def records(self, folder: Path) -> list[Record]:
        """All results in a folder, ordered by file and key."""
        found = [folder / f"{self.name}.jsonl"] if self.file_by is None else sorted(folder.glob(f"{self.name}-*.jsonl"))
        return [record for path in found for record in sorted(read(path), key=self.key)]

    def done(self, job: Job, folder: Path) -> bool:
        """Whether a job has its result."""
        return any(self.key(record) == self.key(job) for record in read(self.path(job, folder)))

    def groups(self, given: Given) -> list[list[Job]]:
        """All jobs, those that share work in one list."""
        found: dict[Hashable, list[Job]] = {}
        for job in self.jobs(given):
            found.setdefault(self.key(job) if self.together is None else self.together(job), []).append(job)
        return list(found.values())


def complete(group: Sequence[Job], study: Study, given: Given) -> list[str]:
    """Run the jobs of a group that have no result yet and append their results; one line to print for each."""
    torch.set_num_threads(1)
    lines = []
    for job in group:
        label = "-".join(map(str, study.key(job))).replace("\n", ", ")
        if study.done(job, given.out):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                record = {**job, **study.run(job, given)}
        except Exception:
            lines.append(f"{label} failed\n{traceback.format_exc()}")
            continue
        append(study.path(job, given.out), record, study.keys, study.packages)
        lines.append(f"{label} {study.line(record)}")
    return lines


def _completed(study: Study, given: Given) -> Iterator[list[str]]:
    groups, work = study.groups(given), partial(complete, study=study, given=given)
    if given.jobs == 1:
        yield from map(work, groups)
        return
    with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
        for done in as_completed([pool.submit(work, group) for group in groups]):
            yield done.result()


def main(study: Study, arguments: Sequence[str] | None = None) -> int:
    """The command of a study; returns its exit status."""
    parser = argparse.ArgumentParser(description=study.description, formatter_class=argparse.RawDescriptionHelpFormatter)
    study.options(parser)
    parser.add_argument("--jobs", type=int, default=1, help="worker processes, of one thread each")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the pages and figures that --report writes")
    parser.add_argument("--report", action="store_true", help="report the results there are, run nothing")
    given = parser.parse_args(arguments)
    if given.report:
        given.docs.mkdir(parents=True, exist_ok=True)
        study.report(study.records(given.out), given)
        return 0
    runs = failed = 0
    for lines in _completed(study, given):
        for line in lines:
            print(line, flush=True)
        runs, failed = runs + len(lines), failed + sum("failed\n" in line for line in lines)
    print(f"{runs} runs, {failed} failed")
    return 1 if failed else 0
