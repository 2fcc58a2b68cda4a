"""Growth of time and memory, and its plot."""

from pathlib import Path

from benchmarks.page import BLUE, GREY, ORANGE, bar, environment, mib, picture, table
from benchmarks.speed.growth import AXES
from benchmarks.store import Record


def section(r: Record) -> str:
    """The section of the page."""
    cuda, rows = r["device"] != "cpu", []
    for name, series in r["series"].items():
        first = next((row for row in series["rows"] if "failed" not in row), None)
        for row in series["rows"]:
            setting = (name, f"{row.get(series['axis'], row['width']):,}")
            if "failed" in row or first is None:
                rows.append((*setting, f"failed: {row.get('failed')}", "", "", "", ""))
                continue
            seconds = f"{row['seconds']:.1f} s" if cuda else f"{row['seconds'] / first['seconds']:.2f}"
            rows.append((*setting, seconds, mib(row["peak_bytes"]), mib(row["factor_bytes"]), mib(row["beyond_bytes"]),
                         "kernel" if row["kernel_side"] else "weights"))  # fmt: skip
    exponents = [
        (name, *("–" if series[key] is None else f"{series[key]:.2f}"
                 for key in ("time_exponent", "memory_exponent", "beyond_exponent")))
        for name, series in r["series"].items()
    ]  # fmt: skip
    lines = [
        f"## Growth of time and memory ({'GPU' if cuda else 'CPU'})", "",
        f"`python -m benchmarks.speed.growth{' --device cuda' if cuda else ''}`: `LowRank` fitted and asked "
        f"{r['queries']} queries, {r['iterations']} solver iterations whatever they reach, a process for each setting; "
        f"{_clock(r)}. Where a letter does not vary: {_base(r)}. Series 'N' lets the library choose whether to look for the "
        "head with the N×N kernel or in weight space, as a user has it; the others stay in weight space. 'Beyond' is "
        "the peak less the data and the layer factors. Where series 'N' changes sides its exponents mix two "
        "methods: judge by 'N, weight side'.", "",
        "![growth](performance_growth.png)" if not cuda else "", "",
        table(("series", "value", "time" if cuda else "time ÷ first", "peak memory", "factors", "beyond", "head found by"),
              rows), "",
        "Exponents (least squares in the logarithms):", "", table(("series", "time", "peak memory", "beyond"), exponents), "",
    ]  # fmt: skip
    return "\n".join([*lines, *_growth_bars(r), "", environment(r)])


def _clock(r: Record) -> str:
    one = r["threads"] == 1 and r["device"] == "cpu"
    return "time is the CPU time of one thread" if one else "time is wall-clock time"


def _base(r: Record) -> str:
    row = r["series"]["K"]["rows"][0]
    return f"N = {row['points']:,}, width {row['width']}, K = 32, C = 1"


def _growth_bars(r: Record) -> list[str]:
    lines = []
    for name in ("N", "N, weight side"):
        series = r["series"][name]
        rows = [row for row in series["rows"] if "failed" not in row]
        largest = series["rows"][-1]["points"]
        done = len(rows) == len(series["rows"])
        lines.append(bar(f"series '{name}': N = {largest:,} finishes", "it does" if done else "it does not", done))
        if len(rows) < 2:
            continue
        slope, beyond = series["time_exponent"], [row["beyond_bytes"] for row in rows]
        lines.append(bar(f"series '{name}': time exponent at most 1.1", f"{slope:.2f}", slope <= 1.1))
        spread = f"{mib(beyond[0])} at the smallest N, {mib(beyond[-1])} at the largest"
        flat = beyond[-1] <= 1.25 * beyond[0]
        lines.append(bar(f"series '{name}': memory beyond data and factors flat in N (within a quarter)", spread, flat))
    return lines


def plot(r: Record, path: Path) -> None:
    """Time and memory of each series relative to its first setting, log-log."""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, NullFormatter

    labels = {"N": "points N", "P": "parameters P", "K": "rank K", "C": "outputs C"}
    lines = (("seconds", BLUE, "o", "time"), ("peak_bytes", GREY, "^", "peak memory"),
             ("beyond_bytes", ORANGE, "s", "memory beyond data and factors"))  # fmt: skip
    figure = picture(12, 3.4)
    axes = figure.subplots(1, 4, sharey=True)
    for ax, (letter, label) in zip(axes, labels.items(), strict=True):
        values: list[float] = []
        for name, style in ((letter, "-"), (f"{letter}, weight side", "--")):
            rows = [row for row in r["series"].get(name, {}).get("rows", []) if "failed" not in row]
            if not rows:
                continue
            values = [row[AXES[name]] for row in rows]
            for key, color, marker, _ in lines:
                first = max(rows[0][key], 1)
                relative = [max(row[key], 1) / first for row in rows]
                ax.loglog(values, relative, style, color=color, marker=marker, markersize=5, linewidth=1.6)
        ax.loglog(values, [value / values[0] for value in values], ":", color="black", linewidth=1)
        ax.set_xticks(values, [f"{value:,}" for value in values], fontsize=8)
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_xlabel(label)
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("relative to the first setting")
    axes[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    handles = [Line2D([], [], color=color, marker=marker, label=label) for _, color, marker, label in lines]
    handles += [Line2D([], [], color=GREY, linestyle="--", label="weight side only"),
                Line2D([], [], color="black", linestyle=":", label="linear")]  # fmt: skip
    figure.legend(handles=handles, loc="outside upper center", ncols=5, frameon=False, fontsize=9)
    figure.savefig(path, dpi=150, metadata={"Software": None})
