"""The page docs/alternatives.md, from the results there are."""

import itertools
import statistics
from pathlib import Path

from scipy import stats

from benchmarks.page import Cell, cell, environments, table
from benchmarks.store import Record
from benchmarks.studies.alternatives.methods import METHODS
from benchmarks.studies.alternatives.values import OURS, common, difference, ranks, splits, values, with_others
from benchmarks.studies.quality.published import PUBLISHED
from benchmarks.studies.runner import Given
from benchmarks.uci import SETS

KINDS = {"standard": "Standard splits", "gap": "Gap splits", "ood": "Out of distribution"}
SCORES = {
    "nll": ("Negative log-likelihood", "½ log 2π included; lower is better."),
    "fresh": ("Negative log-likelihood without copies", "Of the test points that have no copy among the training points, which "
              "matters for wine: a fit that interpolates is rewarded without bound for the others."),
    "crps": ("Continuous ranked probability score", "Lower is better."),
    "coverage": ("Coverage of the central 95 % interval", "0.95 is best."),
    "auroc": ("AUROC of the epistemic std", "The chance that a point from the gap gets a larger std than a new one outside "
              "it, as in [Out of distribution](ood.md); 0.5 is chance."),
}  # fmt: skip


def _cell(value: Cell | None, full: int, digits: int = 2, sign: str = "") -> str:
    if value is None:
        return "–"
    error = f" ± {value.error:.{digits}f}" if value.splits > 1 else ""
    return f"{value.mean:{sign}.{digits}f}{error}" + ("" if value.splits == full else f" ({value.splits})")


def scores(runs: list[Record], kind: str, score: str) -> str:
    """The table of one score, with mean ranks."""
    found = values(runs, kind, score)
    rank, rows = ranks(found, score), []
    for method in (m for m in METHODS if any((m, name) in found for name in SETS)):
        cells = [cell(list(found.get((method, name), {}).values())) for name in SETS]
        row = [_cell(c, splits(kind, name), 3 if score == "crps" else 2) for c, name in zip(cells, SETS, strict=True)]
        rows.append([METHODS[method].label, *row, f"{rank[method]:.1f}" if method in rank and score != "coverage" else "–"])
    title, text = SCORES[score]
    return f"### {title}\n\n{text}\n\n{table(('', *SETS, 'mean rank'), rows)}"


def differences(runs: list[Record], kind: str, score: str = "nll") -> str:
    """Paired differences to ours."""
    found = values(runs, kind, score)
    rows = [[METHODS[m].label, *(_cell(difference(found, m, name), splits(kind, name), sign="+") for name in SETS)]
            for m in METHODS if m != OURS and any((m, name) in found for name in SETS)]  # fmt: skip
    note = f"NLL of the method less that of {METHODS[OURS].label}, by splits: mean ± standard error. Positive: ours is better."
    return f"### Paired differences\n\n{note}\n\n{table(('', *SETS), rows)}"


def costs(runs: list[Record], part: str) -> str:
    """Median times in units of one network's training: of tuning and training, or of 1000 queries."""
    found: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        if "query_seconds" in run:
            query = run["query_seconds"]
            seconds = run["seconds"] - query if part == "training" else 1000 * query / run["queries"]
            found.setdefault((run["method"], run["set"]), []).append(seconds / run["unit_seconds"])

    def digits(values: list[float]) -> str:  # two of them, and no exponents
        return f"{float(f'{statistics.median(values):.2g}'):g}"

    rows = [[METHODS[m].label, *(digits(found[m, name]) if (m, name) in found else "–" for name in SETS)]
            for m in METHODS if any((m, name) in found for name in SETS)]  # fmt: skip
    title = "Tuning and training" if part == "training" else "1000 queries"
    return f"### {title}\n\n{table(('', *SETS), rows)}"


def fairness() -> str:
    """How each method is tuned, and how many fits that takes."""
    rows = [[m.label, m.tuning, str(m.fits), str(m.networks)] for m in METHODS.values()]
    return table(("", "what is tuned", "fits for tuning", "networks a fit"), rows)


def published(runs: list[Record]) -> str:
    """Whether a baseline reaches its published figures, within two standard errors of its own mean, on three splits or more."""
    rows = []
    for kind in ("standard", "gap"):
        found = values(runs, kind, "nll")
        for source in PUBLISHED[kind]:
            for method in (m for m in METHODS if source.label in METHODS[m].published):
                cells = {name: cell(list(found.get((method, name), {}).values())) for name in source.figures}
                ran = {name: value for name, value in cells.items() if value is not None and value.splits >= 3}
                reached = [name for name, value in ran.items() if value.mean - 2 * value.error <= source.figures[name]]
                if ran:
                    missed = ", ".join(sorted(set(ran) - set(reached))) or "none"
                    count = f"{len(reached)} of {len(ran)}" + ("" if len(reached) >= 2 else " (**not met**)")
                    rows.append([METHODS[method].label, source.label, count, missed])
    return table(("", "published", "sets on which it is reached", "not reached"), rows)


def bars(runs: list[Record]) -> str:
    """Whether ours has the best mean rank."""
    lines = []
    for kind, score in itertools.product(("standard", "gap"), ("nll", "fresh")):
        found = values(runs, kind, score)
        rank, (_, same) = ranks(found, score), common(found)
        if OURS in rank and len(rank) > 1:
            first = min(rank, key=lambda m: rank[m])
            counts = sorted({len(some) for some in same.values()})
            text = (
                "the best"
                if first == OURS
                else f"**not the best**, {METHODS[first].label} {'(also ours) ' * METHODS[first].ours}has {rank[first]:.1f}"
            )
            where = f"on the {' to '.join(map(str, counts))} split(s) a set that all of them have"
            lines.append(f"* {KINDS[kind]}, {SCORES[score][0].lower()}: {METHODS[OURS].label} has mean rank {rank[OURS]:.1f} "
                         f"among {len(rank)} methods, {where}: {text}.")  # fmt: skip
    return "\n".join(lines)


def losses(runs: list[Record]) -> str:
    """Where the recipe is beaten, by whom: 0 lies above the 95 % interval of the difference, by Student's t."""
    lines = []
    for kind in ("standard", "gap"):
        found = values(runs, kind, "nll")
        for name in SETS:
            ahead = {m: d for m in METHODS if m != OURS and (d := difference(found, m, name)) is not None
                     and d.splits > 1 and d.mean + float(stats.t.ppf(0.975, d.splits - 1)) * d.error < 0}  # fmt: skip
            if ahead:
                told = ", ".join(f"{METHODS[m].label} ({d.mean:+.2f} ± {d.error:.2f})" for m, d in
                                 sorted(ahead.items(), key=lambda pair: pair[1].mean))  # fmt: skip
                lines.append(f"* {name}, {KINDS[kind].lower()}: {told}")
    head = (
        "## Where the recipe for tables loses\n\nMethods with a lower NLL, the difference below 0 with its 95 % interval "
        "(Student's t over the splits that both have run):"
    )
    return f"{head}\n\n" + ("\n".join(lines) or "none so far.")


def page(runs: list[Record]) -> str:
    """The whole page."""
    parts: list[str] = []
    for kind, title in KINDS.items():
        names = ("auroc",) if kind == "ood" else ("nll", "fresh", "crps", "coverage")
        if not values(runs, kind, names[0]):
            continue
        parts += [f"## {title}", *(scores(runs, kind, name) for name in names)]
        parts += [] if kind == "ood" else [differences(runs, kind)]
    note = ("Median CPU times on one core, in units of training one network of the common budget (6000 steps) on the same set "
            "and machine. Tuning is counted.")  # fmt: skip
    parts += ["## Costs", note, costs(runs, "training"), costs(runs, "queries")]
    why = ("Laplace, epinet, prior networks and the Bayesian deep ensemble: we know of no published NLL on these splits. A "
           "figure is reached when the mean NLL less two standard errors is not above it.")  # fmt: skip
    parts += ["## Bars", bars(runs), "### Published figures", why, published(runs), environments(runs)]
    template = (Path(__file__).parent / "page.md").read_text(encoding="utf-8")
    return template.format(fairness=fairness(), tables="\n\n".join(part for part in parts if part), losses=losses(runs))


def report(records: list[Record], given: Given) -> None:
    """Write the page."""
    path = given.docs / "alternatives.md"
    path.write_text(page(with_others(records, given.out)), encoding="utf-8")
    print(path)
