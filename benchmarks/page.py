"""What the reports share: where pages go, tables in Markdown, means with standard errors, colours."""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.store import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOCS = Path(__file__).parents[1] / "docs"
BLUE, SKY, ORANGE, AMBER, GREY, LIGHT = "#0072B2", "#56B4E9", "#D55E00", "#E69F00", "#555555", "#AAAAAA"  # Okabe–Ito


class Cell(NamedTuple):
    """A score over splits."""

    mean: float
    error: float
    splits: int


def cell(values: Sequence[float]) -> Cell | None:
    """Mean, standard error and number of some values; None if there are none."""
    if not values:
        return None
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return Cell(statistics.fmean(values), error, len(values))


def picture(width: float, height: float) -> "Figure":
    """An empty figure, sizes in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def table(head: Iterable[str], rows: Iterable[Iterable[str]], compact: bool = False) -> str:
    """A table in Markdown; a compact one has no blanks in the rule and in empty cells."""
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return text.replace(" --- ", "---").replace("|  |", "| |") if compact else text


def bar(claim: str, value: str, met: bool) -> str:
    """A line that says whether a claim is met."""
    return f"* {claim}: **{value}**, {'met' if met else '**not met**'}."


def percent(value: float) -> str:
    """Two digits, or an exponent below a thousandth."""
    return f"{value:.2%}" if value >= 1e-3 else f"{value:.1e}"


def mib(size: float) -> str:
    """Bytes in MiB."""
    return f"{size / 2**20:,.0f} MiB" if abs(size) >= 10 * 2**20 else f"{size / 2**20:.1f} MiB"


def environment(record: Record) -> str:
    """The environment of one run, as a sentence."""
    e = record["environment"]
    versions = f"ntkgp {e['ntkgp']}, torch {e['torch']}, Python {e['python']}"
    return f"Environment: {versions}, {e['cores']} cores, {e['threads']} threads."


def environments(records: Iterable[Record]) -> str:
    """A section that lists the environments of many runs."""
    found = {(r["environment"]["ntkgp"], r["environment"]["torch"], r["environment"]["python"], r["device"].split(":")[0])
             for r in records}  # fmt: skip
    lines = [f"* ntkgp {ntkgp}, torch {torch}, Python {python}, on {'a GPU' if device == 'cuda' else 'the CPU'}"
             for ntkgp, torch, python, device in sorted(found)]  # fmt: skip
    return "\n".join(["## Environments", "", *lines])
