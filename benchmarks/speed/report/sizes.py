"""The std at every size."""

from typing import Any

from benchmarks.page import bar, environment, mib, percent, table
from benchmarks.store import Record

GIB = 2**30
ON_DEVICE = ("device-exact", "device-weights", "device-draws")
ABOUT = {
    "cpu": "`python -m benchmarks.speed.sizes`: the paper's network, eight inputs, noise std 0.1, two threads, each part in a "
    "process of its own. Errors of the std are relative L2 over the queries, against a referee in float64.",
    "cuda": "`python -m benchmarks.speed.sizes --device cuda` with `--part device-exact`, `device-weights` or `device-draws`: "
    "the paper's network in float32, eight inputs, noise std 0.1. The std is held against the brackets of `sharpen` at a few "
    "queries: for an exact posterior that checks the rounding of its answers only.",
}


def section(r: Record) -> str:
    """The section of the page."""
    parts = {"9000": _nine_thousand, "weights": _weights, "growth": _growth, "both": _both, **dict.fromkeys(ON_DEVICE, _device)}
    cuda = any(name in r for name in ON_DEVICE)
    lines = [
        f"## The std at every size{' (GPU)' if cuda else ''}", "", ABOUT["cuda" if cuda else "cpu"],
    ]  # fmt: skip
    for name, part in parts.items():
        if name in r:
            lines += ["", *([f"{name}: failed, {r[name]['failed']}"] if "failed" in r[name] else part(r[name]))]
    return "\n".join([*lines, "", environment(r)])


def _nine_thousand(part: dict[str, Any]) -> list[str]:
    exact = part["rows"]["Exact()"]
    rows = [
        (f"`{name}`" if "(" in name else name, row["choice"].split(";")[0], f"{row['fit_seconds'] / exact['fit_seconds']:.2f}",
         mib(row["peak_bytes"]), percent(row["std_error"]), f"{row['ratio_5']:.3f} to {row['ratio_95']:.3f}",
         f"{row['inside']:.2%}", f"{row['upper_over_lower']:.2f}")
        for name, row in part["rows"].items()
    ]  # fmt: skip
    head = (
        "method",
        "chosen",
        "fit ÷ `Exact()`",
        "peak memory",
        "std error",
        "std ÷ exact, 5–95 %",
        "exact inside",
        "upper ÷ lower",
    )
    forced = next(row for name, row in part["rows"].items() if "rank=" in name)
    chosen, finer = part["rows"]["no method given"], part["rows"]["LowRank(rtol=0.03)"]
    ratio = chosen["fit_seconds"] / exact["fit_seconds"]
    return [
        f"**N = {part['points']:,}, width {part['width']}, P = {exact['parameters']:,}**, {part['queries']:,} queries:", "",
        table(head, rows), "",
        bar("no method given: std within 1e-6 of exact", percent(chosen["std_error"]), chosen["std_error"] <= 1e-6),
        bar("no method given: fit at most 1.3 times `Exact()`", f"{ratio:.2f}", ratio <= 1.3),
        bar("draws: std error at most 10 %", percent(forced["std_error"]), forced["std_error"] <= 0.1),
        bar("draws: std ÷ exact, 5–95 %, within 0.84 to 1.19", f"{forced['ratio_5']:.3f} to {forced['ratio_95']:.3f}",
            forced["ratio_5"] >= 0.84 and forced["ratio_95"] <= 1.19),
        bar("draws: exact inside the bracket at 99.5 % of the queries", f"{forced['inside']:.2%}", forced["inside"] >= 0.995),
        bar("`rtol=0.03` reaches 3 %", percent(finer["std_error"]), finer["std_error"] <= 0.03),
    ]  # fmt: skip


def _weights(part: dict[str, Any]) -> list[str]:
    rows = [
        (f"{row['points']:,}", "a DataLoader" if row["batches"] else "tensors", row["choice"].split(";")[0],
         mib(row["peak_bytes"]), percent(row["mean_error"]), percent(row["std_error"]))
        for row in part["rows"].values()
    ]  # fmt: skip
    first = part["rows"]["tensors"]
    return [
        f"**Many points, width {first['width']}, P = {first['parameters']:,}**, no method given; the referee sums the "
        "normal matrix from Jacobians by autograd. Peak memory is that of fit and queries, beyond the data:", "",
        table(("points", "from", "chosen", "peak memory", "mean error", "std error"), rows), "",
        bar("100,000 points: std within 1e-6 of the referee", percent(first["std_error"]), first["std_error"] <= 1e-6),
        bar("at most 2 GiB beyond the data", mib(first["peak_bytes"]), first["peak_bytes"] <= 2 * GIB),
    ]  # fmt: skip


def _growth(part: dict[str, Any]) -> list[str]:
    first = part["rows"][0]["fit_seconds"]
    rows = [(f"{row['points']:,}", f"{row['fit_seconds'] / first:.2f}", mib(row["peak_bytes"])) for row in part["rows"]]
    slope = part["time_exponent"]
    return [
        f"**Growth with N**, width {part['width']}, exact over the weights:", "",
        table(("points", "fit ÷ first", "peak memory"), rows), "",
        bar("time exponent at most 1.1", f"{slope:.2f}", slope <= 1.1),
    ]  # fmt: skip


def _both(part: dict[str, Any]) -> list[str]:
    overlap = part["brackets_overlap"]
    return [
        f"**Too large for both matrices**: N = {part['points']:,}, P = {part['parameters']:,}, `LowRank(rank={part['rank']}, "
        f"draws=64)`: {part['iterations']} solver steps, peak memory {mib(part['peak_bytes'])}. `sharpen(rtol=0.01)` at "
        f"{part['queries']} queries took {part['products']} products with {part['columns']:,} columns in all, "
        f"{part['sharpen_seconds'] / part['fit_seconds']:.2f} times as long as the fit.", "",
        bar("the brackets of draws and `sharpen` overlap at every query", f"{overlap:.0%}", overlap == 1),
        bar("`sharpen` brackets to 1 %", percent(part["widest_sharp_bracket"]), part["widest_sharp_bracket"] <= 0.01),
        f"* the std of the draws is off by {percent(part['std_error'])} at these queries, by `sharpen`; √(1/2T) is 8.8 %.",
    ]  # fmt: skip


def _device(part: dict[str, Any]) -> list[str]:
    rows = [
        ("device", part["device"]),
        ("points, parameters", f"{part['points']:,}, {part['parameters']:,}"),
        ("fit", f"{part['fit_seconds']:.1f} s"),
        ("500 queries, mean and std", f"{part['query_seconds']:.2f} s"),
        ("peak memory beyond the data", mib(part["peak_bytes"])),
        (f"std error at {part['sharpened']} queries", percent(part["std_error"])),
    ]
    return [f"**{part['choice'].split(';')[0]}**:", "", table(("", ""), rows)]
