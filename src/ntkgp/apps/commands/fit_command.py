"""``ntkgp fit``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ntkgp.apps.commands.shared import Device, Drop, Json, Quiet, TableFiles, explained, print_json
from ntkgp.apps.tables import folder
from ntkgp.apps.tables import ranks as table_ranks
from ntkgp.apps.tables.columns import Column, TableError
from ntkgp.apps.tables.named import NamedColumns, NamedModel, fit_named
from ntkgp.apps.tables.options import TableOptions
from ntkgp.apps.tables.reading import files_of, read

SIDES = {
    "weights": "each a pass over the rows",
    "kernel": "each a pass over the rows, its directions from the kernel matrix",
    "matrix": "on a matrix of parameters by parameters written out in one pass over the rows",
}


def fit(
    table: TableFiles,
    target: Annotated[list[str], typer.Option(help="Column to predict; may be given several times.")],
    out: Annotated[Path, typer.Option(help="Folder for the model.")] = Path("model"),
    ignore: Annotated[list[str] | None, typer.Option(help="Column to leave out; may be given several times.")] = None,
    noise_column: Annotated[
        list[str] | None, typer.Option(help="Column of known noise variances, no feature; one for each target.")
    ] = None,
    group_noise: Annotated[
        str | None, typer.Option(help="Column whose every value has a noise variance of its own, learned; also a feature.")
    ] = None,
    drop_missing: Drop = False,
    width: Annotated[
        int | None,
        typer.Option(help="Width of the networks.", show_default="512; beyond 8,000 rows × targets 64, beyond 200,000 32"),
    ] = None,
    warm_networks: Annotated[
        int | None,
        typer.Option(help="Small networks trained for features; 0 for none.", show_default="6; 2 beyond 8,000 rows × targets"),
    ] = None,
    rank: Annotated[int, typer.Option(help="Rank of the posterior beyond 8,000 rows × targets, where it is not exact.")] = 256,
    max_rows_tuning: Annotated[int, typer.Option(help="Hyper-parameters are tuned on at most so many rows × targets.")] = 2000,
    steps: Annotated[int, typer.Option(help="Steps of tuning.")] = 100,
    starts: Annotated[int, typer.Option(help="Starts of tuning, of which the best goes on.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of all randomness.", min=0, max=2**63 - 1)] = 0,
    device: Device = "cpu",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit a Gaussian process with a network's tangent kernel to a table.

    Every column but the targets is a feature: numbers as they are, texts and booleans as one feature for each category.

    Example: [bold]ntkgp fit train.csv --target price --out model[/bold]

    Several targets: [bold]ntkgp fit train.parquet --target price --target rent --ignore id[/bold]

    Noise of its own for each sensor: [bold]ntkgp fit train.csv --target price --group-noise sensor[/bold]

    Several processes, a folder of Parquet files: [bold]torchrun --nproc-per-node 2 -m ntkgp fit shards --target price[/bold]

    Many rows, sooner: [bold]ntkgp fit big.parquet --target price --width 16 --rank 64[/bold]
    """
    ignored, noise_columns = ignore or [], noise_column or []
    with explained() as said, table_ranks.joined(device) as (ranks, device):
        show = not quiet and (ranks is None or ranks.first)
        options = TableOptions(
            width=width, warm_networks=warm_networks, rank=rank, points=max_rows_tuning, steps=steps, starts=starts, seed=seed,
            device=device, progress=show,
        )  # fmt: skip
        names = read(files_of(table)[0]).collect_schema().names()
        if noise_columns and (group_noise or len(noise_columns) != len(target)):
            raise TableError(f"give one --noise-column for each of the {len(target)} targets and no --group-noise, or none")
        unknown = [name for name in [*target, *ignored, *noise_columns, *([group_noise] if group_noise else [])]
                   if name not in names]  # fmt: skip
        if unknown:
            raise TableError(f"{table} has no column {unknown[0]!r}; its columns are {', '.join(names)}")
        twice = [name for name in target if target.count(name) > 1 or name in {*ignored, *noise_columns, group_noise}]
        if twice:
            raise TableError(f"column {twice[0]!r} is given as --target twice, or also to be ignored or as noise; name it once")
        wanted = [name for name in names if name not in {*ignored} - {group_noise}]
        data = table_ranks.rows(table, wanted, drop_missing, ranks)
        used = [name for name in wanted if name not in {*target, *noise_columns, *ignored}]
        features = table_ranks.same_columns([Column.of(data[name]) for name in used], ranks)
        if not features:
            raise TableError(f"{table} has no column left for features; its columns are {', '.join(names)}")
        columns = NamedColumns(tuple(features), tuple(target), tuple(ignored), tuple(noise_columns), group_noise)
        model = fit_named(data, columns, options, ranks)
        if ranks is not None and not ranks.first:
            return
        folder.save(model, out)
        record = {
            "model": str(out),
            "targets": list(target),
            **model.model.fitted,
            "noise_std": _noise_std(model),
            "warnings": said,
        }
        if as_json:
            print_json(record)
        elif not quiet:
            typer.echo(_summary(record))


def _noise_std(named: NamedModel) -> dict[str, Any] | None:
    """The noise found, by target, and by group where there are groups."""
    targets, variances = named.columns.targets, named.model.noise_var
    if variances is None:
        return None
    std = variances.sqrt()
    if named.group is None:
        return dict(zip(targets, std[0].tolist(), strict=True))
    return {target: dict(zip(named.group.categories, std[:-1, c].tolist(), strict=True))
            for c, target in enumerate(targets)}  # fmt: skip


def _summary(record: dict[str, Any]) -> str:
    posterior = "exact posterior" if record["rank"] is None else f"posterior of rank {record['rank']}"
    trained = f"{record['warm_networks']} of them trained for features ({record['warm_steps']} steps)"
    lines = [
        f"{record['rows']} rows, {record['features']} features: {posterior} of {', '.join(record['targets'])} in "
        f"{record['seconds']:.1f} s, in {record['dtype']}; networks of width {record['width']}, {trained}, with "
        f"{record['parameters']} parameters",
        f"log marginal likelihood {record['log_marginal_likelihood']:.2f} on {record['tuned_on']} rows; a row left out has "
        f"{record['leave_one_out']:.2f} of the squared error expected",
    ]
    if record["rank"] is not None:
        lines.append(
            f"the mean is solved to {record['accuracy']:.0e} in {record['iterations']} steps, {SIDES[record['side']]}; stages "
            + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in record["stages"].items())
        )
    if record["noise_judged_on"]:
        lines.append(f"the noise was judged by {record['noise_judged_on']} rows beyond a first fit")
    for target, std in (record["noise_std"] or {}).items():
        by_group = ", ".join(f"{group} {value:.4g}" for group, value in list(std.items())[:20]) if isinstance(std, dict) else ""
        lines.append(f"noise of {target}: std {by_group or format(std, '.4g')}")
    return "\n".join([*lines, f"wrote {record['model']}"])
