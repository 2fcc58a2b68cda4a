"""The search for the recipe for tables: variants on held-out points inside the training splits of public sets.

python -m benchmarks.studies.recipe --data-dir DIR [--splits 3] [--variants table ...] [--device cuda --jobs 15]
python -m benchmarks.studies.recipe --data-dir DIR --family infinite --splits 2 [--sets bike ...]
python -m benchmarks.studies.recipe --report [--family infinite] [--held-out gap]           the tables of docs/tuning.md

A seventh of the training points of a standard split is predicted from the others (``--held-out gap``: the middle third along
one feature); test points are not touched. The sets are six of the UCI repository and scikit-learn's diabetes, small and noisy.

The family of infinite networks was chosen on twelve further sets as well, and on at most 1,000 points of each.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

from benchmarks.methods.ours import at_initialisation, finite_table, table
from benchmarks.page import table as markdown
from benchmarks.scores import Forecast
from benchmarks.store import Record
from benchmarks.studies import splits
from benchmarks.studies.runner import Given, Job, Study, main
from benchmarks.uci import SETS as SIX
from benchmarks.uci import Split, load
from ntkgp.networks import SumOfNetworks
from ntkgp.tuning.climb import Adam
from ntkgp.tuning.recipe.table import ROUGH_SHARE, infinite_table

SETS = (*SIX, "diabetes")
MORE = ("concreteslump", "autos", "breastcancer", "machine", "forest", "solar", "skillcraft", "sml", "parkinsons", "elevators",
        "bike", "keggundirected")  # fmt: skip
TANGENT = {"trend": (0, 2), "waves": (2,), "rough": (0, 2, 4)}  # the layers of each part whose weights are not fixed


def with_scales(smooth: float, local: float, split: Split, **options: Any) -> Forecast:
    """The recipe from other starting scales of the inputs."""
    with mock.patch.multiple("ntkgp.tuning.recipe.finite", SMOOTH=smooth, LOCAL=local):
        return finite_table(split, **options)


def with_parts(names: list[str], share: float, split: Split, **options: Any) -> Forecast:
    """The infinite recipe with some of its parts, and another share for the rough one."""
    layers = {f"networks.{k}.1.{layer}": share if name == "rough" else 1.0
              for k, name in enumerate(names) for layer in TANGENT[name]}  # fmt: skip

    def some(inputs: int, outputs: int) -> SumOfNetworks:
        every = infinite_table(inputs, outputs).networks
        return SumOfNetworks(*(network for name, network in zip(TANGENT, every, strict=True) if name in names))

    with mock.patch.multiple("ntkgp.tuning.recipe.table", infinite_table=some, LAYERS=layers):
        return table(split, **options)


def with_adam(split: Split, **options: Any) -> Forecast:
    """The infinite recipe with the optimiser of finite networks."""
    with mock.patch("ntkgp.tuning.search.QuasiNewton", Adam):
        return table(split, **options)


FINITE: dict[str, Callable[..., Forecast]] = {
    "table": finite_table,
    "smooth network alone": at_initialisation,
    "without warm networks": partial(finite_table, warm_networks=0),
    "warm for 60 steps": partial(finite_table, warm_steps=[60]),
    "warm for 200 steps": partial(finite_table, warm_steps=[200]),
    "warm for 600 steps": partial(finite_table, warm_steps=[600]),
    "warm for 0, 60, 200 or 600 steps": partial(finite_table, warm_steps=[0, 60, 200, 600]),
    "twelve warm networks": partial(finite_table, warm_networks=12, warm_steps=[200]),
    "hyper-prior half as wide": partial(finite_table, hyper_prior=0.5),
    "hyper-prior a quarter as wide": partial(finite_table, hyper_prior=0.25),
    "local network half as fine": partial(with_scales, 0.7, 7.0, warm_steps=[200]),
    "local network twice as fine": partial(with_scales, 0.7, 28.0, warm_steps=[200]),
    "tuned on 1000 points": partial(finite_table, points=1000, warm_steps=[200]),
    "narrow: 256 and 1024": partial(finite_table, width=256, local_width=1024, warm_steps=[200]),
}
INFINITE: dict[str, Callable[..., Forecast]] = {
    "infinite": table,
    "trend alone": partial(with_parts, ["trend"], 1.0),
    "waves alone": partial(with_parts, ["waves"], 1.0),
    "rough part alone": partial(with_parts, ["rough"], 1.0),
    "trend and waves": partial(with_parts, ["trend", "waves"], 1.0),
    "trend and rough part": partial(with_parts, ["trend", "rough"], ROUGH_SHARE),
    "waves and rough part": partial(with_parts, ["waves", "rough"], ROUGH_SHARE),
    "equal shares": partial(with_parts, ["trend", "waves", "rough"], 1.0),
    "narrower hyper-prior": partial(table, hyper_prior=0.6),
    "wider hyper-prior": partial(table, hyper_prior=1.6),
    "one start": partial(table, starts=1),
    "Adam": with_adam,
}
VARIANTS = {**FINITE, **INFINITE}
FAMILIES = {"finite": FINITE, "infinite": INFINITE}


def options(parser: argparse.ArgumentParser) -> None:
    splits.options(parser, VARIANTS, [], "variants", splits=[3])
    parser.add_argument("--family", choices=list(FAMILIES), default="finite", help="variants, if none is named, and the tables")
    parser.add_argument("--most", type=int, default=1000, help="points of a set, for infinite networks")
    parser.add_argument("--held-out", choices=["random", "gap"], default="random")
    parser.add_argument("--device", default="cpu")


def jobs(given: Given) -> Iterator[Job]:
    """Set by set, each variant on every split."""
    variants = FAMILIES[given.family] if len(given.variants) == len(VARIANTS) else given.variants
    for name in given.sets or SETS:
        for index in splits.chosen(given, name, kind(name)):
            for variant in variants:
                yield {"set": name, "held_out": given.held_out, "split": index, "variant": variant}


def kind(name: str) -> str:
    """The kind of splits of a set."""
    return "random" if name in MORE else "standard"


def run(job: Job, given: Given) -> Record:
    """Scores of a variant on the held-out part of a training split."""
    whole, index = load(given.data_dir, job["set"], kind(job["set"]), job["split"]), job["split"]
    if job["variant"] in INFINITE and len(whole.x) > given.most:
        whole = whole.validation(seed=1000 + index, fraction=1 - given.most / len(whole.x))
    if job["held_out"] == "gap":
        split = whole.gap(3 * index % whole.x.shape[1])
    else:
        split = whole.validation(seed=index, fraction=1 / 7)
    forecast = VARIANTS[job["variant"]](split.blind(), seed=index, device=given.device)
    return {"device": given.device, **splits.scored(forecast, split)}


def line(record: Record) -> str:
    return f"{record['scores']['nll']:.3f}"


def report(records: list[Record], given: Given) -> None:
    """Print mean validation NLL of each variant on each set, and coverage over all."""
    rows, sets = [], given.sets or (SETS if given.family == "finite" else (*SIX, *MORE))
    for variant in FAMILIES[given.family]:
        mine = [run for run in records if run["variant"] == variant and run["held_out"] == given.held_out]
        cells, covers = [], []
        for name in sets:
            found = [run.get("scores_without_copies", run["scores"]) if given.family == "infinite" else run["scores"]
                     for run in mine if run["set"] == name]  # fmt: skip
            cells.append(f"{statistics.mean(s['nll'] for s in found):.2f} ({len(found)})" if found else "–")
            covers += [statistics.mean(s["coverage"] for s in found)] if found else []
        if covers:
            rows.append([variant, *cells, f"{statistics.mean(covers):.3f}"])
    print(markdown(("variant", *sets, "coverage"), rows, compact=True))


KEYS = ("set", "held_out", "split", "variant")
STUDY = Study("recipe", __doc__ or "", KEYS, options, jobs, run, line, report, file_by="set")

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
