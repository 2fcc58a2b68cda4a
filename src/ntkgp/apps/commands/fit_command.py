"""``ntkgp fit``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ntkgp.apps.commands.outputs import Force, check_outputs
from ntkgp.apps.commands.shared import Device, Drop, Json, Quiet, TableFiles, explained, print_json
from ntkgp.apps.tables import folder
from ntkgp.apps.tables import ranks as table_ranks
from ntkgp.apps.tables.columns import NUMBER, Column, TableError, kind_of
from ntkgp.apps.tables.named import NamedColumns, NamedModel, fit_named
from ntkgp.apps.tables.options import TableOptions
from ntkgp.apps.tables.reading import files_of, read
from ntkgp.storage.lock import LOCK, check_lock_file

SIDES = {  # how the low-rank posterior worked, by the value of `side`
    "weights": "one pass over the rows per step",
    "kernel": "one pass over the rows per step; singular directions from the kernel matrix",
    "matrix": "on the parameters × parameters matrix, computed in one pass over the rows",
}


def fit(
    table: TableFiles,
    target: Annotated[list[str], typer.Option(help="Column to predict; repeat for several.")],
    out: Annotated[Path, typer.Option(help="Folder for the model.")] = Path("model"),
    ignore: Annotated[list[str] | None, typer.Option(help="Column to leave out; repeat for several.")] = None,
    noise_column: Annotated[
        list[str] | None, typer.Option(help="Column of known noise variances, one per target; not a feature.")
    ] = None,
    group_noise: Annotated[
        str | None, typer.Option(help="Learn one noise variance per value of this column; it is also a feature.")
    ] = None,
    categorical: Annotated[
        list[str] | None, typer.Option(help="Column of categories, even if they look like numbers; repeat for several.")
    ] = None,
    force: Force = False,
    drop_missing: Drop = False,
    width: Annotated[
        float | None,
        typer.Option(help="Width of the networks; inf for the limit.", show_default="inf; above 20,000 rows × targets 64"),
    ] = None,
    warm_networks: Annotated[
        int | None,
        typer.Option(help="Number of small networks trained for features, with a finite width.", show_default="6; 2 if large"),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(help="Rank of a low-rank posterior.", show_default="exact where that is not slower")
    ] = None,
    max_rows_tuning: Annotated[int, typer.Option(help="Maximal number of rows × targets used for tuning.")] = 2000,
    steps: Annotated[int, typer.Option(help="Number of tuning steps.")] = 100,
    starts: Annotated[int, typer.Option(help="Number of starting points for tuning; the best one continues.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.", min=0, max=2**63 - 1)] = 0,
    device: Device = "cpu",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit a Gaussian process with a network's tangent kernel to a table.

    All columns except the targets are features: numbers unchanged, texts and booleans as one feature per category. A column of
    numbers with a few texts in it is an error: correct these cells, or pass --categorical.

    Example: [bold]ntkgp fit train.csv --target price --out model[/bold]

    Several targets: [bold]ntkgp fit train.parquet --target price --target rent --ignore id[/bold]

    One noise variance per sensor: [bold]ntkgp fit train.csv --target price --group-noise sensor[/bold]

    Several processes, a folder of Parquet files: [bold]torchrun --nproc-per-node 2 -m ntkgp fit shards --target price[/bold]

    Faster with many rows: [bold]ntkgp fit big.parquet --target price --width 16 --rank 64[/bold]
    """
    ignored, noise_columns, texts = ignore or [], noise_column or [], categorical or []
    given_width = int(width) if width is not None and width.is_integer() else width
    with explained() as warned, table_ranks.joined(device) as (ranks, device):
        show = not quiet and (ranks is None or ranks.first)
        options = TableOptions(
            width=given_width, warm_networks=warm_networks, rank=rank, points=max_rows_tuning, steps=steps, starts=starts,
            seed=seed, device=device, progress=show,
        )  # fmt: skip
        names = read(files_of(table)[0]).collect_schema().names()
        if noise_columns and (group_noise or len(noise_columns) != len(target)):
            raise TableError(
                f"pass one --noise-column for each of the {len(target)} targets without --group-noise, or none at all"
            )
        unknown = [name for name in [*target, *ignored, *noise_columns, *texts, *([group_noise] if group_noise else [])]
                   if name not in names]  # fmt: skip
        if unknown:
            raise TableError(f"{table} has no column {unknown[0]!r}; its columns are {', '.join(names)}")
        twice = [name for name in target if target.count(name) > 1 or name in {*ignored, *noise_columns, *texts, group_noise}]
        twice += [name for name in noise_columns if name in texts]
        if twice:
            raise TableError(
                f"column {twice[0]!r} is given twice: as --target or --noise-column, and again as --target, --ignore, "
                "--noise-column, --group-noise or --categorical; give it once"
            )
        if ranks is None or ranks.first:
            check_outputs([out / folder.FACTS], force, files_of(table))
            check_lock_file(out / LOCK)
        wanted = [name for name in names if name not in {*ignored} - {group_noise}]
        used = [name for name in wanted if name not in {*target, *noise_columns, *ignored}]
        texts = [name for name in texts if name in used]
        numbers = [*target, *noise_columns]
        data = table_ranks.rows(table, wanted, drop_missing, ranks, numbers=numbers, features=used, texts=texts)
        no_category = [name for name in texts if kind_of(data[name]) == NUMBER]
        if no_category:
            raise TableError(
                f"column {no_category[0]!r} has type {data.schema[no_category[0]]}; --categorical takes texts and whole "
                "numbers: convert the column"
            )
        features = table_ranks.same_columns([Column.of(data[name]) for name in used], ranks)
        if not features:
            raise TableError(f"{table} has no column left for features; its columns are {', '.join(names)}")
        columns = NamedColumns(tuple(features), tuple(target), tuple(ignored), tuple(noise_columns), group_noise)
        model = fit_named(data, columns, options, ranks)
        if ranks is not None and not ranks.first:
            return
        folder.save(model, out, replace=force)
        record = {
            "model": str(out),
            "targets": list(target),
            **model.model.fitted,
            "noise_std": _noise_std(model),
            "warnings": warned,
        }
        if as_json:
            print_json(record)
        elif not quiet:
            typer.echo(_summary(record))


def _noise_std(named: NamedModel) -> dict[str, Any] | None:
    """The noise standard deviation by target, and by group if there are groups."""
    targets, variances = named.columns.targets, named.model.noise_var
    if variances is None:
        return None
    std = variances.sqrt()
    if named.group is None:
        return dict(zip(targets, std[0].tolist(), strict=True))
    return {target: dict(zip(named.group.categories, std[:-1, c].tolist(), strict=True))
            for c, target in enumerate(targets)}  # fmt: skip


def _summary(record: dict[str, Any]) -> str:
    """The lines printed after a fit."""
    posterior = "exact posterior" if record["rank"] is None else f"posterior of rank {record['rank']}"
    network = "a network of infinite width"
    if record["width"] is not None:
        network = (
            f"networks of width {record['width']}, {record['warm_networks']} of them trained for features in "
            f"{record['warm_steps']} steps; {record['parameters']} parameters in total"
        )
    held_out, error = "rows in five folds", record["cross_validated"]
    if error is None:
        held_out, error = "each row left out", record["leave_one_out"]
    lines = [
        f"{record['rows']} rows, {record['features']} features: {posterior} of {', '.join(record['targets'])}, fitted in "
        f"{record['seconds']:.1f} s with {record['dtype']}",
        network,
        f"log marginal likelihood {record['log_marginal_likelihood']:.2f} on {record['tuned_on']} rows; mean squared "
        f"error of {held_out} {error:.2f} times the predicted variance",
    ]
    if record["rank"] is not None:
        lines.append(
            f"the solver reached an accuracy of {record['accuracy']:.0e} in {record['iterations']} steps, "
            f"{SIDES[record['side']]}; times: "
            + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in record["stages"].items())
        )
    if record["noise_judged_on"]:
        lines.append(f"the noise was estimated from {record['noise_judged_on']} rows that a first fit had not seen")
    for target, std in (record["noise_std"] or {}).items():
        by_group = ", ".join(f"{group} {value:.4g}" for group, value in list(std.items())[:20]) if isinstance(std, dict) else ""
        lines.append(f"noise std of {target}: {by_group or format(std, '.4g')}")
    return "\n".join([*lines, f"wrote {record['model']}"])
