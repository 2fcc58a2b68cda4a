"""A million rows from the command line."""

from benchmarks.page import bar, environment, table
from benchmarks.store import Record


def section(r: Record) -> str:
    """The section of the page."""
    said, found, exact = r["said"], r["scores"], r["against_exact"]
    names = ("fit", "predict", "predict_mean_only")
    costs = [
        (name.replace("_mean_only", " --mean-only"), f"{cost['wall_seconds']:,.0f} s", f"{cost['cpu_seconds']:,.0f} s",
         f"{cost['peak_gib']:.1f} GiB") for name, cost in ((name, r[name]) for name in names)
    ]  # fmt: skip
    stages = ", ".join(f"{name} {seconds:,.0f} s" for name, seconds in said["stages"].items())
    facts = [
        ("networks", f"width {said['width']}, {said['warm_networks']} trained for features for {said['warm_steps']:,} steps; "
                     f"{said['parameters']:,} parameters, {said['dtype']}"),
        ("posterior", f"rank {said['rank']}, products by the {said['side']}; {stages}"),
        ("mean", f"{said['iterations']} solver steps, relative accuracy {said['accuracy']:.0e}"),
        ("noise std", f"{said['noise_std']['y']:.4f} found, {r['noise_std']:.4f} true"),
        ("NLL", f"{found['nll']:.4f}; {found['nll_of_the_truth']:.4f} with function and noise known"),
        ("RMSE", f"{found['rmse']:.4f} to new observations, {found['rmse_to_function']:.4f} to the function (epistemic std "
                 f"{found['mean_epistemic_std']:.4f}); the target's std is {found['std_of_target']:.3f}"),
        ("95 % intervals cover", f"{found['coverage_95']:.2%} of new observations"),
        (f"beside `Exact` on {exact['rows']:,} rows", f"mean off by {exact['mean_error_in_stds_rms']:.1e} posterior std (rms); "
         f"{exact['inside_the_bracket']:.1%} of exact variances in the bracket; std {exact['std_ratio_mean']:.3f} of exact"),
        ("files", f"table {r['csv_megabytes']:.0f} MB, model {r['model_megabytes']:.0f} MB"),
    ]  # fmt: skip
    total, peak = sum(r[name]["wall_seconds"] for name in names[:2]), max(r[name]["peak_gib"] for name in names)
    return "\n".join([
        "## A million rows from the command line", "",
        f"`python -m benchmarks.speed.million_rows_cli`: {r['rows']:,} rows × {r['columns']} columns of CSV, as many others to "
        f"predict, {r['threads']} threads; load average of the machine at the end {r['load_average'][0]:.1f}.", "",
        table(("command", "wall time", "CPU time", "peak memory"), costs), "", table(("", ""), facts), "",
        bar("fit and predict finish within 24 GiB", f"{total / 60:.0f} min, {peak:.1f} GiB", peak <= 24), "", environment(r),
    ])  # fmt: skip
