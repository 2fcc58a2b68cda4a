"""``ntkgp predict``."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import polars as pl
import typer
from torch import Tensor

from ntkgp.apps.commands.outputs import Force, check_outputs
from ntkgp.apps.commands.shared import Device, Json, ModelFolder, Quiet, TableFile, check_level, explained, print_json, rows_of
from ntkgp.apps.tables import folder
from ntkgp.apps.tables.reading import check_writable_kind, write
from ntkgp.posterior.prediction import Prediction


def predict(
    model: ModelFolder,
    table: TableFile,
    out: Annotated[Path, typer.Option(help="File for the predictions, .csv or .parquet.")] = Path("predictions.csv"),
    level: Annotated[float, typer.Option(help="Probability of a new observation between lower and upper.")] = 0.95,
    mean_only: Annotated[bool, typer.Option("--mean-only", help="Write only the mean, which is much faster.")] = False,
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="Leave predictions empty for rows with a missing or infinite value.")
    ] = False,
    force: Force = False,
    device: Device = "cpu",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Predict the rows of a table: writes one row per input row, in the same order.

    Columns: mean; epistemic_std, the uncertainty that more data would remove; total_std, which includes noise;
    lower and upper, the central interval of a new observation. With several targets, each column starts with
    the name of its target, as in price_mean.

    Example: [bold]ntkgp predict model new.parquet --out predictions.csv --level 0.9[/bold]
    """
    with explained() as warned:
        check_level(level)
        check_outputs([out], force, [table], model)
        check_writable_kind(out)
        fitted = folder.load(model, device)
        data, whole = rows_of(fitted, table, [], drop_missing)
        if mean_only:
            values = {"mean": fitted.mean(data, progress=not quiet)}
        else:
            values = _answers(fitted.predict(data, progress=not quiet), level)
            if values["total_std"] is None:
                warnings.warn(
                    f"{table} has no column {fitted.columns.noise[0]!r} of noise variances: total_std, lower and upper stay "
                    "empty; add the column to get them",
                    stacklevel=2,
                )
        columns = _columns(fitted.columns.targets, values, len(data))
        rows = pl.DataFrame([whole.arg_true().cast(pl.Int64).alias("row"), *columns])
        every = pl.DataFrame(pl.int_range(len(whole), eager=True).alias("row"))
        write(every.join(rows, on="row", how="left", maintain_order="left").drop("row"), out, replace=force)
        record = {"predictions": str(out), "rows": len(whole), "predicted": len(data), "level": level, "warnings": warned}
        if as_json:
            print_json(record)
        elif not quiet:
            typer.echo(f"{len(data)} of {len(whole)} rows predicted; wrote {out}")


def _answers(p: Prediction, level: float) -> dict[str, Tensor | None]:
    """The prediction columns; None for those that need the noise, if it is unknown."""
    if p.noise_var is None:
        return {"mean": p.mean, "epistemic_std": p.std, "total_std": None, "lower": None, "upper": None}
    lower, upper = p.interval(level)
    return {"mean": p.mean, "epistemic_std": p.std, "total_std": p.total_std, "lower": lower, "upper": upper}


def _columns(targets: Sequence[str], values: Mapping[str, Tensor | None], rows: int) -> list[pl.Series]:
    """The prediction columns of all targets, with their names."""
    return [
        (pl.repeat(None, rows, dtype=pl.Float64, eager=True) if value is None else pl.Series(value[:, c].numpy())).alias(
            name if len(targets) == 1 else f"{target}_{name}"
        )
        for c, target in enumerate(targets)
        for name, value in values.items()
    ]
