"""The scores of the alternatives by method, set and split, their ranks and their differences to ours.

Runs of the same methods in the studies of quality and ood have the same splits, preprocessing and seeds; they are taken where
this study has none. Costs are of its own runs alone.
"""

import statistics
from collections.abc import Iterable
from pathlib import Path

from benchmarks.page import Cell, cell
from benchmarks.store import Record
from benchmarks.studies.alternatives.methods import METHODS
from benchmarks.studies.ood import study as ood
from benchmarks.studies.quality import study as quality
from benchmarks.studies.quality.tables import SPLITS
from benchmarks.uci import SETS

OURS, REUSED = "table", ("table", "at_initialisation", "post_hoc", "gaussian_process")
Values = dict[tuple[str, str], dict[int, float]]  # (method, set) to split to score


def with_others(own: Iterable[Record], folder: Path) -> list[Record]:
    """The study's own runs, and runs of the same methods in the studies of quality and ood for splits that have none."""
    found = {_key(r): r for r in own}
    others = [r for r in quality.STUDY.records(folder) if r["method"] in REUSED]
    others += [{**r, "kind": "ood"} for r in ood.STUDY.records(folder) if r["method"] in REUSED and r["set"] in SETS]
    for other in others:
        found.setdefault(_key(other), other)
    return list(found.values())


def _key(record: Record) -> tuple[str, str, str, int]:
    return record["method"], record["set"], record["kind"], record["split"]


def values(runs: Iterable[Record], kind: str, score: str) -> Values:
    """One score of all runs of a kind."""
    found: Values = {}
    for run in runs:
        if run["kind"] == kind:
            value = _value(run, score)
            found.setdefault((run["method"], run["set"]), {})[run["split"]] = value
    return found


def _value(run: Record, score: str) -> float:
    if score == "fresh":  # where no point has a copy, all are fresh
        return run.get("scores_without_copies", run["scores"])["nll"]
    return run["auroc"]["epistemic"] if score == "auroc" else run["scores"][score]


def splits(kind: str, name: str) -> int:
    """How many a set has."""
    return SPLITS["standard" if kind == "standard" else "gap"][name]


def common(found: Values) -> tuple[list[str], dict[str, list[int]]]:
    """The methods that have run on every set, and the splits of each set that all of them have."""
    methods = [m for m in METHODS if all((m, name) in found for name in SETS)]
    return methods, {name: sorted(set.intersection(*(set(found[m, name]) for m in methods))) for name in SETS if methods}


def ranks(found: Values, score: str) -> dict[str, float]:
    """The mean over sets of each method's rank by its mean score on the splits that all have; 1 is best."""
    (methods, same), sign = common(found), -1 if score == "auroc" else 1
    if not methods or not all(same.values()):
        return {}
    places: dict[str, list[int]] = {m: [] for m in methods}
    for name in SETS:
        means = {m: sign * statistics.fmean(found[m, name][k] for k in same[name]) for m in methods}
        for place, method in enumerate(sorted(methods, key=lambda m: means[m]), 1):
            places[method].append(place)
    return {m: statistics.fmean(place) for m, place in places.items()}


def difference(found: Values, method: str, name: str) -> Cell | None:
    """The method less ours on the splits both have run."""
    theirs, ours = found.get((method, name), {}), found.get((OURS, name), {})
    return cell([theirs[k] - ours[k] for k in sorted(theirs.keys() & ours.keys())])
