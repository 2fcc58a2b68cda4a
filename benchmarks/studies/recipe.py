"""The search for the recipe for tables: variants on held-out points inside the training splits of seven sets.

python -m benchmarks.studies.recipe --data-dir DIR [--splits 3] [--variants table ...] [--device cuda --jobs 15]
python -m benchmarks.studies.recipe --report [--held-out gap]           the tables of docs/tuning.md

A seventh of the training points of a standard split is predicted from the others (``--held-out gap``: the middle third along
one feature); test points are not touched. The sets are six of the UCI repository and scikit-learn's diabetes, small and noisy.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import ntkgp
from benchmarks.methods.ours import at_initialisation, table
from benchmarks.page import table as markdown
from benchmarks.scores import Forecast, score
from benchmarks.store import Record
from benchmarks.studies import splits
from benchmarks.studies.runner import Given, Job, Study, main
from benchmarks.uci import SETS as SIX
from benchmarks.uci import Split, load

SETS = (*SIX, "diabetes")


def with_scales(smooth: float, local: float, split: Split, **options: Any) -> Forecast:
    """The recipe from other starting scales of the inputs."""
    with mock.patch.multiple(ntkgp.tune_table.__module__, SMOOTH=smooth, LOCAL=local):
        return table(split, **options)


VARIANTS: dict[str, Callable[..., Forecast]] = {
    "table": table,
    "smooth network alone": at_initialisation,
    "without warm networks": partial(table, warm_networks=0),
    "warm for 60 steps": partial(table, warm_steps=[60]),
    "warm for 200 steps": partial(table, warm_steps=[200]),
    "warm for 600 steps": partial(table, warm_steps=[600]),
    "warm for 0, 60, 200 or 600 steps": partial(table, warm_steps=[0, 60, 200, 600]),
    "twelve warm networks": partial(table, warm_networks=12, warm_steps=[200]),
    "hyper-prior half as wide": partial(table, hyper_prior=0.5),
    "hyper-prior a quarter as wide": partial(table, hyper_prior=0.25),
    "local network half as fine": partial(with_scales, 0.7, 7.0, warm_steps=[200]),
    "local network twice as fine": partial(with_scales, 0.7, 28.0, warm_steps=[200]),
    "tuned on 1000 points": partial(table, points=1000, warm_steps=[200]),
    "narrow: 256 and 1024": partial(table, width=256, local_width=1024, warm_steps=[200]),
}


def options(parser: argparse.ArgumentParser) -> None:
    splits.options(parser, VARIANTS, SETS, "variants", splits=[3])
    parser.add_argument("--held-out", choices=["random", "gap"], default="random")
    parser.add_argument("--device", default="cpu")


def jobs(given: Given) -> Iterator[Job]:
    """Set by set, each variant on every split."""
    for name in given.sets:
        for index in splits.chosen(given, name, "standard"):
            for variant in given.variants:
                yield {"set": name, "held_out": given.held_out, "split": index, "variant": variant}


def run(job: Job, given: Given) -> Record:
    """Scores of a variant on the held-out part of a training split."""
    whole, index = load(given.data_dir, job["set"], "standard", job["split"]), job["split"]
    if job["held_out"] == "gap":
        split = whole.gap(3 * index % whole.x.shape[1])
    else:
        split = whole.validation(seed=index, fraction=1 / 7)
    forecast = VARIANTS[job["variant"]](split.blind(), seed=index, device=given.device)
    return {"device": given.device, "scores": score(forecast, split.y_test)}


def line(record: Record) -> str:
    return f"{record['scores']['nll']:.3f}"


def report(records: list[Record], given: Given) -> None:
    """Print mean validation NLL of each variant on each set, and coverage over all."""
    rows = []
    for variant in VARIANTS:
        mine = [run for run in records if run["variant"] == variant and run["held_out"] == given.held_out]
        cells, covers = [], []
        for name in SETS:
            found = [run["scores"] for run in mine if run["set"] == name]
            cells.append(f"{statistics.mean(s['nll'] for s in found):.2f} ({len(found)})" if found else "–")
            covers += [statistics.mean(s["coverage"] for s in found)] if found else []
        if covers:
            rows.append([variant, *cells, f"{statistics.mean(covers):.3f}"])
    print(markdown(("variant", *SETS, "coverage"), rows, compact=True))


KEYS = ("set", "held_out", "split", "variant")
STUDY = Study("recipe", __doc__ or "", KEYS, options, jobs, run, line, report, file_by="set")

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
