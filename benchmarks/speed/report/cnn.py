"""A convolutional network."""

from benchmarks.page import bar, environment, table
from benchmarks.store import Record


def section(r: Record) -> str:
    """The section of the page."""
    facts = [
        ("points, outputs, parameters", f"{r['points']:,}, {r['outputs']}, {r['parameters']:,}"),
        ("rank, solver iterations", f"{r['rank']}, {r['iterations']}"),
        ("the Jacobian would take", f"{r['jacobian_gib']:.1f} GiB"),
        ("peak memory beyond the start", f"{r['peak_gib_beyond_start']:.1f} GiB"),
    ]
    lines = [
        "## A convolutional network", "",
        "`python -m benchmarks.speed.cnn`: two convolutions, group norm, two linear layers, 28×28 inputs, `LowRank`, two "
        "cores.", "",
        table(("", ""), facts), "",
        bar("a posterior without an N·C × P array", f"{r['peak_gib_beyond_start'] / r['jacobian_gib']:.0%} of its size",
            r["ordered"] and r["peak_gib_beyond_start"] < r["jacobian_gib"] / 2),
    ]  # fmt: skip
    return "\n".join([*lines, "", environment(r)])
