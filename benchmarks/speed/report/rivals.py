"""Other libraries."""

from benchmarks.page import environment, mib, percent, table
from benchmarks.store import Record


def section(r: Record) -> str:
    """The section of the page."""
    ours = next(row for row in r["rows"] if row["method"] == "ntkgp Exact")
    rows = []
    for row in r["rows"]:
        if "failed" in row:
            rows.append((row["method"], f"failed: {row['failed']}", "", "", ""))
            continue
        rows.append((row["method"], f"{row['seconds'] / ours['seconds']:.2f}", mib(row["peak_bytes"]),
                     percent(row["std_error"]), percent(row["worst_std_error"])))  # fmt: skip
    versions = ", ".join(f"{name} {version}" for name, version in r["environment"]["packages"].items())
    return "\n".join([
        "## Beside other libraries", "",
        f"`python -m benchmarks.speed.rivals`: epistemic std of one trained 4-64-64-1 network ({r['parameters']:,} "
        f"parameters), N = {r['points']:,}, {r['queries']} queries, prior precision 1, noise std {r['noise']}, "
        "float64 unless it says otherwise; CPU time of fit and queries, a process for each method. The error is that of the "
        "std against the exact posterior (relative L2, and at the worst query). GPyTorch and scikit-learn "
        "have no NTK of a given network and are "
        "handed ours as a kernel function. laplace-torch is given the weights, prior precision and noise, and nothing to tune. "
        f"{versions}.", "",
        table(("method", "time ÷ `Exact`", "peak memory", "std error", "worst"), rows), "", environment(r),
    ])  # fmt: skip
