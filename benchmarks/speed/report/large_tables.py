"""Real tables of many rows."""

from typing import Any

from benchmarks.page import environment, mib, percent, table
from benchmarks.store import Record

HEAD = ("method", "time ÷ default", "peak memory", "NLL", "without copies", "RMSE", "95 % cover", "std error")


def section(r: Record) -> str:
    """The section of the page."""
    lines = [
        "## Tables of many rows", "",
        "`python -m benchmarks.speed.large_tables --data-dir DIR`: one split of each set, hyper-parameters tuned on 2,000 rows "
        "(SGPR and SVGP: on all), two threads, a process for each row. Time is that of tuning, fit and test points, relative "
        "to the small network with no method given. GPyTorch has an ARD squared-exponential kernel. The std error is that of "
        "the epistemic std against the exact posterior with the same hyper-parameters, relative L2 over the test points.",
    ]  # fmt: skip
    for name, part in r.items():
        if name != "environment":
            lines += ["", f"**{name}**, {_size(part)}:", "", table(HEAD, _rows(part["rows"])), "", *_sharpened(part["rows"])]
    return "\n".join([*lines, "", environment(r)])


def _size(part: dict[str, Any]) -> str:
    rows = part["rows"]["small network, default"]
    small, large = (part["rows"][f"{key} network, default"].get("parameters", 0) for key in ("small", "large"))
    return f"{rows['rows']:,} rows, {small:,} and {large:,} parameters"


def _rows(rows: dict[str, Any]) -> list[tuple[str, ...]]:
    unit, found = _seconds("small network, default", rows), []
    for name, row in rows.items():
        if name.startswith("tune"):
            continue
        label = name + (f": {row['choice'].split(';')[0]}" if "choice" in row else "")
        if "failed" in row:
            found.append((label, f"failed: {row['failed'][:60]}", *[""] * 6))
            continue
        error = percent(row["std_error"]) if "std_error" in row else ""
        found.append((
            label, f"{_seconds(name, rows) / unit:.1f}", mib(row["peak_bytes"]),
            f"{row['nll']:.3f}", f"{row['nll_without_copies']:.3f}", f"{row['rmse']:.4f}", f"{row['coverage']:.1%}", error,
        ))  # fmt: skip
    return found


def _seconds(name: str, rows: dict[str, Any]) -> float:
    """Of tuning, fit and test points."""
    row = rows[name]
    if "seconds" in row:
        return row["seconds"]
    return rows[f"tune {name.split()[0]}"]["tune_seconds"] + row["fit_seconds"] + row["query_seconds"]


def _sharpened(rows: dict[str, Any]) -> list[str]:
    return [
        f"* {name}: `sharpen(rtol=0.01)` at {row['sharpened']} test points brackets to "
        f"{percent(row['widest_sharp_bracket'])} in {row['sharpen_seconds'] / row['fit_seconds']:.2f} times the fit's time; "
        f"by it the std of the draws is off by {percent(row['std_error_by_sharpen'])}."
        for name, row in rows.items()
        if "sharpened" in row
    ]
