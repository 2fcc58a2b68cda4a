"""Training the networks of Figure 1."""

from benchmarks.page import environment, percent, table
from benchmarks.store import Record


def section(r: Record) -> str:
    """The section of the page."""
    default = r["rows"][0]["trainer"]
    rows = []
    for row in r["rows"]:
        ours = next(other for other in r["rows"] if other["trainer"] == default and other["seed"] == row["seed"])
        rows.append((
            row["trainer"], str(row["seed"]), percent(row["mean_error"]), percent(row["std_error"]), f"{row['steps']:,}",
            f"{row['seconds'] / ours['seconds']:.1f}", "yes" if row["stopped_by_itself"] else "no",
        ))  # fmt: skip
    return "\n".join([
        "## Training the networks of Figure 1", "",
        "`python -m benchmarks.speed.trainers`: our trainer and the paper's, in one run; errors (relative L2) against the "
        "analytic quantity the trained networks should equal.", "",
        table(("trainer", "seed", "mean", "std", "steps", "time ÷ default", "stopped by itself"), rows), "", environment(r),
    ])  # fmt: skip
