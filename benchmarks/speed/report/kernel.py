"""The kernel matrix."""

from benchmarks.page import bar, environment, mib, table
from benchmarks.store import Record


def section(r: Record) -> str:
    """The section of the page."""
    beyond = r["squares_beyond_factors"]
    kernel_share = r["seconds"] / r["seconds_without_check"] - 1
    exact_share = r["exact_seconds"] / r["exact_seconds_without_check"] - 1
    rows = [
        ("`ntkgp.kernel(net, x)`, all of it", "1", mib(r["peak_bytes"])),
        ("the same without the checks", f"{r['seconds_without_check'] / r['seconds']:.2f}", ""),
        ("`vmap(jacrev)` contraction", f"{r['ratio']:.0f}", mib(r["rival_peak_bytes"])),
    ]
    if "neural_tangents" in r:
        rows += [(f"neural-tangents {name}", f"{seconds / r['seconds']:.1f}", "")
                 for name, seconds in r["neural_tangents"].get("seconds", {}).items()]  # fmt: skip
    return "\n".join([
        "## The kernel matrix", "",
        f"`python -m benchmarks.speed.kernel`: the {r['points']} × {r['points']} kernel matrix of the "
        f"8-{r['width']}-{r['width']}-1 network ({r['parameters']:,} parameters) in {r['dtype']} on {r['threads']} threads. "
        "Best of 25 against best of two, the rival with all samples at a time or 64, whichever is faster. The checks compare "
        "layer factors with autodiff at eight points, prove or test at every point that rows stay apart, and compare batches "
        "of several sizes; runs with and without them take turns. Memory is the resident set above that "
        "before the call, in a process of its own that "
        "gives freed blocks back at once.", "",
        table(("", "time ÷ ours", "peak memory"), rows), "",
        f"The two matrices differ by {r['difference']:.1e} (relative). One N×N matrix is {mib(r['square_bytes'])}, the factors "
        f"are {mib(r['factor_bytes'])}.", "",
        bar("at least 80 times faster than `vmap(jacrev)`", f"{r['ratio']:.0f} times, {r['ratio_without_check']:.0f} without "
            "the checks", r["ratio"] >= 80),
        bar("the checks add at most 10 % to the kernel", f"{kernel_share:.0%}", kernel_share <= 0.1),
        bar(f"and to `Exact` on {r['exact_points']} points", f"{exact_share:.0%}", exact_share <= 0.1),
        bar("peak at most four N×N matrices plus the factors", f"{beyond:.1f} N×N matrices beyond the factors", beyond <= 4),
        "", environment(r),
    ])  # fmt: skip
