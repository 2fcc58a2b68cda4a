"""The tables of the quality page, one per score: a row for each method, a column for each set."""

import statistics
from collections.abc import Iterable

from benchmarks.page import Cell, cell, table
from benchmarks.store import Record
from benchmarks.studies.quality.methods import LABELS, METHODS
from benchmarks.studies.quality.published import PUBLISHED
from benchmarks.uci import SETS

SPLITS = {
    "standard": dict.fromkeys(SETS, 20),
    "gap": {"concrete": 8, "energy": 8, "kin8nm": 8, "power": 4, "wine": 11, "yacht": 6},
}
TEXTS = {
    "nll": "### Negative log-likelihood\n\n½ log 2π included; lower is better. The figures in italics are published ones, with "
           "protocols of their own.",
    "fresh": "### Negative log-likelihood of the test points that have no copy among the training points",
    "rmse": "### Root mean square error",
    "crps": "### Continuous ranked probability score\n\nOf the Gaussian with the predicted mean and std; lower is better.",
    "coverage": "### Coverage of the central 95 % interval\n\nOf the same Gaussian; 0.95 is best.",
    "cost": "### Cost\n\nMedian time of tuning, training and prediction, in units of training one network (two layers of 50 "
            "units, 200 epochs) on the same set and machine.",
}  # fmt: skip


def cells(records: Iterable[Record], kind: str, score: str) -> dict[tuple[str, str], Cell]:
    """``(method, set)`` to its score."""
    found: dict[tuple[str, str], list[float]] = {}
    for record in records:
        if record["kind"] == kind:
            value = _value(record, score)
            if value is not None:
                found.setdefault((record["method"], record["set"]), []).append(value)
    if score == "cost":
        return {key: Cell(statistics.median(values), float("nan"), len(values)) for key, values in found.items()}
    return {key: value for key, values in found.items() if (value := cell(values)) is not None}


def _value(record: Record, score: str) -> float | None:
    """One score of a run; None if the run did not record it."""
    if score == "cost":
        return record["seconds"] / record["unit_seconds"] if record["unit_seconds"] else None
    if score == "fresh":
        return record.get("scores_without_copies", {}).get("nll")
    return record["scores"].get(score)


def order(records: Iterable[Record], kind: str) -> list[str]:
    """The methods that ran, this library's first."""
    ran = {record["method"] for record in records if record["kind"] == kind}
    known = [name for name in METHODS if name in ran]
    return known + sorted(ran - set(known))


def section(records: list[Record], kind: str, score: str) -> str:
    """A table of one score: a row for each method, a column for each set."""
    values = cells(records, kind, score)
    digits = 3 if score in ("rmse", "crps") else 2
    whole = {key: value for key, value in values.items() if value.splits == SPLITS[kind][key[1]]}
    lowest = {name: min((value.mean for (_, other), value in whole.items() if other == name), default=None) for name in SETS}
    rows = []
    for method in order(records, kind):
        if not any((method, name) in values for name in SETS):
            continue
        row = [LABELS.get(method, method)]
        for name in SETS:
            value = values.get((method, name))
            text = "–" if value is None else _text(value, SPLITS[kind][name], digits, score)
            best = (method, name) in whole and score not in ("coverage", "cost") and whole[method, name].mean == lowest[name]
            row.append(f"**{text}**" if best else text)
        rows.append(row)
    if score == "nll":
        for source in PUBLISHED[kind]:
            figures = (source.figures.get(name) for name in SETS)
            rows.append([f"*{source.label}*", *("–" if value is None else f"*{value:.2f}*" for value in figures)])
    return f"{TEXTS[score]}\n\n{table(('', *SETS), rows)}"


def _text(value: Cell, full: int, digits: int, score: str) -> str:
    count = "" if value.splits == full else f" ({value.splits})"
    if score == "cost":
        return f"{value.mean:.2g}{count}" if value.mean < 10 else f"{value.mean:.0f}{count}"
    error = "" if value.splits < 2 else f" ± {value.error:.{digits}f}"
    return f"{value.mean:.{digits}f}{error}{count}"
