"""A million points on one GPU."""

from benchmarks.page import bar, environment, table
from benchmarks.store import Record


def section(r: Record) -> str:
    """The section of the page."""
    run = r["run"]
    stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in run["stages"].items())
    peak = run["peak_gib"]
    facts = [
        ("device", run["device"]), ("points, parameters", f"{run['points']:,}, {run['parameters']:,}"),
        ("rank, queries", f"{run['rank']}, {run['queries']:,}"), ("fit", f"{run['fit_seconds']:.1f} s ({stages})"),
        ("queries", f"{run['query_seconds']:.2f} s"), ("solver iterations", f"{run['iterations']:,}"),
        ("gradient norm ÷ its start", f"{run['gradient_ratio']:.1e}"), ("relative accuracy", f"{run['accuracy']:.1e}"),
        ("lower ÷ upper, median query", f"{run['bracket']['lower_over_upper_median']:.2g}"),
        ("peak GPU memory", "–" if peak is None else f"{peak:.1f} GiB"),
    ]  # fmt: skip
    lines = [
        "## A million points on one GPU", "",
        f"`python -m benchmarks.speed.million{' --rates' if 'rates' in r else ''}`: the 8-{run['width']}-{run['width']}-1 "
        "network, noise std 0.1: head, mean and a bracket for every query.", "", table(("", ""), facts), "",
        bar("fit and queries in 60 s", f"{run['total_seconds']:.1f} s", run["total_seconds"] <= 60),
    ]  # fmt: skip
    if peak is not None:
        lines.append(bar("at most 24 GiB", f"{peak:.1f} GiB", peak <= 24))
    ratio = run["gradient_ratio"]
    lines.append(bar("gradient norm at most 3e-3 of its start", f"{ratio:.1e}", ratio <= 3e-3))
    if "rates" in r:
        rows = [(columns, name, f"{rate['tflops']:.1f}", f"{rate['matmul_tflops']:.1f}", f"{rate['fraction']:.0%}")
                for columns, rates in r["rates"].items() for name, rate in rates.items()]  # fmt: skip
        lines += ["", "JᵀJV beside a plain matrix product, same dtype, same run:", "",
                  table(("columns", "dtype", "TFLOP/s", "matrix product", "fraction"), rows), ""]  # fmt: skip
        for name, rate in r["rates"].get("32", {}).items():
            lines.append(bar(f"32 columns, {name}: at least 60 % of a matrix product", f"{rate['fraction']:.0%}",
                             rate["fraction"] >= 0.6))  # fmt: skip
    return "\n".join([*lines, "", environment(r)])
