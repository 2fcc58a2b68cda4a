"""`LowRank` against `Exact`."""

from benchmarks.page import bar, environment, table
from benchmarks.store import Record


def section(r: Record) -> str:
    """The section of the page."""
    cuda = r["device"] != "cpu"
    rows = [(
        str(row["rank"]), f"{row['mean_error']:.1e}", f"{row['variance_error']:.1e}", f"{row['inside']:.1%}",
        f"{row['lower_over_exact']:.3g}", f"{row['upper_over_exact']:.4g}", f"{row['iterations']:,}",
        f"{row['seconds']:.1f} s" if cuda else f"{row['seconds_over_exact']:.1f}",
    ) for row in r["rows"]]  # fmt: skip
    last = "time" if cuda else "time ÷ `Exact`"
    mean = max(row["mean_error"] for row in r["rows"])
    inside = min(row["inside"] for row in r["rows"])
    lines = [
        f"## `LowRank` against `Exact` ({'GPU' if cuda else 'CPU'})", "",
        f"`python -m benchmarks.speed.lowrank_accuracy{' --device cuda' if cuda else ''}`: float64, N = {r['points']:,}, "
        f"P = {r['parameters']:,}, solver tolerance 1e-8, 500 queries.", "",
        table(("rank", "mean, relative error", "variance, relative error", "exact inside the bracket", "lower ÷ exact",
               "upper ÷ exact", "iterations", last), rows), "",
        bar("mean to 1e-6 at every rank", f"{mean:.1e}", mean <= 1e-6),
        bar("the bracket contains the exact variance at every query", f"{inside:.1%}", inside == 1),
    ]  # fmt: skip
    full = [row for row in r["rows"] if row["rank"] >= min(r["points"], r["parameters"])]
    if full:
        error = full[0]["variance_error"]
        lines.append(bar("variance to 1e-6 at full rank", f"{error:.1e}", error <= 1e-6))
    return "\n".join([*lines, "", environment(r)])
