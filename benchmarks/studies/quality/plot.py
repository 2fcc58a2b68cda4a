"""The plots of the quality page: NLL of every method on every set."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.page import BLUE, GREY, ORANGE, picture
from benchmarks.store import Record
from benchmarks.studies.quality.methods import LABELS, OURS
from benchmarks.studies.quality.published import PUBLISHED
from benchmarks.studies.quality.tables import cells, order
from benchmarks.uci import SETS


def plot(records: list[Record], kind: str, path: Path) -> None:
    """NLL with standard errors, a panel for each set; published figures are hollow and grey; values far off are at the edge."""
    values = cells(records, kind, "nll")
    rows = order(records, kind)
    sets = [name for name in SETS if any(other == name for _, other in values)]
    height = 0.24 * (len(rows) + len(PUBLISHED[kind])) + 0.7
    columns = min(3, len(sets))
    down = -(-len(sets) // columns)
    figure = picture(3.0 * columns + 2.6, height * down)
    axes = figure.subplots(down, columns, sharey=True, squeeze=False)
    ticks = [LABELS.get(method, method) for method in rows] + [source.label for source in PUBLISHED[kind]]
    for ax, name in zip(axes.flat, sets, strict=False):
        shown = [value.mean for (_, other), value in values.items() if other == name]
        shown += [source.figures[name] for source in PUBLISHED[kind] if name in source.figures]
        draw = _marker(ax, shown)
        for place, method in enumerate(rows):
            if (value := values.get((method, name))) is not None:
                draw(place, value.mean, value.error if value.splits > 1 else 0.0, ORANGE if method in OURS else BLUE, True)
        for place, source in enumerate(PUBLISHED[kind], len(rows)):
            if (figure_of := source.figures.get(name)) is not None:
                draw(place, figure_of, 0.0, GREY, False)
        ax.axhline(len(rows) - 0.5, color=GREY, linewidth=0.6)
        ax.set_yticks(range(len(ticks)), ticks, fontsize=8)
        ax.set_ylim(len(ticks) - 0.5, -0.5)
        ax.set_title(name, fontsize=10)
        ax.tick_params(axis="x", labelsize=8)
        ax.grid(axis="x", alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes.flat[len(sets) :]:
        ax.set_visible(False)
    figure.supxlabel("negative log-likelihood (lower is better)", fontsize=9)
    figure.savefig(path, dpi=150, metadata={"Software": None})


def _marker(ax: Any, means: Sequence[float]) -> Callable[[int, float, float, str, bool], None]:
    """Draws a row of a panel whose scale suits the better half of the values."""
    low, middle = min(means), statistics.median(means)
    edge = min(max(means), middle + 2.5 * max(middle - low, 0.15)) + 0.01
    ax.set_xlim(low - 0.15 * (edge - low), edge + 0.05 * (edge - low))

    def draw(place: int, mean: float, error: float, color: str, filled: bool) -> None:
        if mean > edge:
            ax.plot(edge, place, ">", color=color, markersize=6, markerfacecolor=color if filled else "white")
            ax.annotate(f"{mean:.1f} ", (edge, place), ha="right", va="center", fontsize=7, xytext=(-4, 0),
                        textcoords="offset points")  # fmt: skip
            return
        ax.errorbar(mean, place, xerr=error, fmt="o" if filled else "D", color=color, markersize=5 if filled else 4,
                    markerfacecolor=color if filled else "white", linewidth=1.3)  # fmt: skip

    return draw
