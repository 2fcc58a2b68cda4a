"""The commands for tables: ``ntkgp fit``, ``ntkgp predict`` and ``ntkgp evaluate``."""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import torch
import typer
from torch import Tensor

from ntkgp.apps.diagnostics.evaluation import evaluate as evaluated
from ntkgp.apps.diagnostics.report import Report
from ntkgp.apps.tables import folder as model_folder
from ntkgp.apps.tables import ranks as table_ranks
from ntkgp.apps.tables.columns import CATEGORY, Column, TableError, check_kinds
from ntkgp.apps.tables.model import Options, TableModel, fit_table, numbers
from ntkgp.apps.tables.reading import collect, complete, files_of, read, write
from ntkgp.posterior.prediction import Prediction


def _device(name: str) -> str:
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or not (number.isdecimal() or name == kind) or (kind == "cpu" and number):
        raise typer.BadParameter(f"expected cpu, cuda or cuda:1 (the second GPU), got {name!r}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "cuda" and int(number or 0) >= count:
        found = f"torch {torch.__version__} finds {count or 'no'} CUDA device{'s' if count > 1 else ''} here"
        raise typer.BadParameter(f"{found}, so {name!r} cannot be used; use cpu, or {'another' if count else 'install'} one")
    return name


SIDES = {
    "weights": "each a pass over the rows",
    "kernel": "each a pass over the rows, its directions from the kernel matrix",
    "matrix": "on a matrix of parameters by parameters written out in one pass over the rows",
}
TableFiles = Annotated[
    Path,
    typer.Argument(
        metavar="TABLE", help="A .csv, .tsv or .parquet file, a folder of them, or a pattern such as 'part-*.parquet'."
    ),
]
TableFile = Annotated[Path, typer.Argument(metavar="TABLE", help="A .csv, .tsv or .parquet file, a row for each observation.")]
ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="A folder written by ntkgp fit.")]
Drop = Annotated[bool, typer.Option("--drop-missing", help="Do without rows in which a value is missing.")]
Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda or cuda:1.", callback=_device)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object to standard output, and nothing else there.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars and no summary.")]


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
    with _explained() as said, table_ranks.joined(device) as (ranks, device):
        show = not quiet and (ranks is None or ranks.first)
        options = Options(width, warm_networks, rank, max_rows_tuning, steps, starts, seed, device, progress=show)
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
        kept = [name for name in names if name not in {*ignored} - {group_noise}]
        data = table_ranks.rows(table, kept, drop_missing, ranks)
        used = [name for name in kept if name not in {*target, *noise_columns, *ignored}]
        features = table_ranks.same_columns([Column.of(data[name]) for name in used], ranks)
        if not features:
            raise TableError(f"{table} has no column left for features; its columns are {', '.join(names)}")
        model = fit_table(
            data, features, target, ignored=ignored, noise_columns=noise_columns, group=group_noise, options=options,
            ranks=ranks,
        )  # fmt: skip
        if ranks is not None and not ranks.first:
            return
        model_folder.save(model, out)
        record = {"model": str(out), "targets": list(target), **model.fitted, "noise_std": _noise_std(model), "warnings": said}
        if as_json:
            _print_json(record)
        elif not quiet:
            typer.echo(_summary(record))


def predict(
    model: ModelFolder,
    table: TableFile,
    out: Annotated[Path, typer.Option(help="Where to write the predictions, .csv or .parquet.")] = Path("predictions.csv"),
    level: Annotated[float, typer.Option(help="Probability that a new observation lies between lower and upper.")] = 0.95,
    mean_only: Annotated[
        bool, typer.Option("--mean-only", help="Write the mean alone, which takes a small part of the time.")
    ] = False,
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="Leave the predictions of rows with a missing value empty.")
    ] = False,
    device: Device = "cpu",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Predict the rows of a table: a row for each, in the same order.

    Columns: mean; epistemic_std, what more data would remove; total_std, of a new observation; lower and upper, the ends of its
    central interval. With several targets their names come first, as in price_mean.

    Example: [bold]ntkgp predict model new.parquet --out predictions.csv --level 0.9[/bold]
    """
    with _explained() as said:
        fitted = model_folder.load(model, device)
        data, whole = _rows(fitted, table, [], drop_missing)
        if mean_only:
            values = {"mean": fitted.mean(data, progress=not quiet)}
        else:
            values = _answers(fitted.predict(data, progress=not quiet), level)
            if values["total_std"] is None:
                warnings.warn(
                    f"{table} has no column {fitted.noise.columns[0]!r} of noise variances: total_std, lower and upper are "
                    "empty",
                    stacklevel=2,
                )
        columns = _columns(fitted.targets, values, len(data))
        rows = pl.DataFrame([whole.arg_true().cast(pl.Int64).alias("row"), *columns])
        every = pl.DataFrame(pl.int_range(len(whole), eager=True).alias("row"))
        write(every.join(rows, on="row", how="left", maintain_order="left").drop("row"), out)
        record = {"predictions": str(out), "rows": len(whole), "predicted": len(data), "level": level, "warnings": said}
        if as_json:
            _print_json(record)
        elif not quiet:
            typer.echo(f"{len(data)} of {len(whole)} rows predicted: wrote {out}")


def evaluate(
    model: ModelFolder,
    table: TableFile,
    out: Annotated[Path, typer.Option(help="Folder for report.txt, report.json and report.png.")] = Path("report"),
    level: Annotated[float, typer.Option(help="Level of the intervals whose coverage is counted.")] = 0.95,
    drop_missing: Drop = False,
    device: Device = "cpu",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Hold a model against a table with known targets: errors, scores, and whether intervals hold what they claim.

    With several targets each has a report of its own, in a folder of its name. docs/diagnostics.md explains the numbers.

    Example: [bold]ntkgp evaluate model test.csv --out report[/bold]
    """
    with _explained() as said:
        if not 0 < level < 1:
            raise TableError(f"level must lie between 0 and 1, got {level!r}; 95 % is 0.95")
        fitted = model_folder.load(model, device)
        data, whole = _rows(fitted, table, [*fitted.targets, *fitted.noise.columns], drop_missing)
        found = fitted.predict(data, progress=not quiet)
        y = numbers(data, fitted.targets)
        record: dict[str, Any] = {"rows": len(whole), "evaluated": len(data), "targets": {}, "written": []}
        for c, name in enumerate(fitted.targets):
            p = Prediction(*(t[:, c] for t in vars(found).values()))
            report = Report(p, y[:, c], evaluated(p, y[:, c]))
            folder = out if len(fitted.targets) == 1 else out / _file_name(name)
            record["written"] += [str(path) for path in report.save(folder)]
            scores = report.evaluation.as_dict()
            record["targets"][name] = {**scores, "level": level, "coverage": report.evaluation.coverage(level)}
            if not (as_json or quiet):
                typer.echo(f"{name}: {report}")
                if level != 0.95:
                    typer.echo(f"intervals of {level:.4g} cover {report.evaluation.coverage(level):.1%}")
        if as_json:
            _print_json({**record, "warnings": said})
        elif not quiet:
            typer.echo("wrote " + ", ".join(record["written"]))


def _rows(model: TableModel, path: Path, also: Sequence[str], drop: bool) -> tuple[pl.DataFrame, pl.Series]:
    """The rows of a file that can be predicted, and which of all rows these are."""
    source = read(path, [column.name for column in model.columns if column.kind == CATEGORY])
    names = source.collect_schema().names()
    known = {*model.needed, *model.targets, *model.ignored, *model.noise.columns}
    unknown = [name for name in names if name not in known]
    if unknown:
        warnings.warn(
            f"{path} has columns that the training table had not, and which are not used: {', '.join(unknown)}", stacklevel=2
        )
    wanted = dict.fromkeys([*model.needed, *also, *(name for name in model.noise.columns if name in names)])
    data = collect(source, list(wanted), path)
    check_kinds(data, model.columns, path)
    whole = complete(data, path, drop)
    data = data.filter(whole)
    for column in [*model.columns, *([model.noise.group] if model.noise.group else [])]:
        unseen = column.unseen(data[column.name])
        if unseen:
            said = (
                "their noise is the mean of the others'" if column == model.noise.group else "they count as none of the known"
            )
            warnings.warn(
                f"column {column.name!r} of {path} has categories that the training table had not: {', '.join(unseen[:5])}"
                f"{', …' if len(unseen) > 5 else ''}; {said}",
                stacklevel=2,
            )
    return data, whole


def _answers(p: Prediction, level: float) -> dict[str, Tensor | None]:
    """What there is to say of each row; None where the noise is not known."""
    if p.noise_var is None:
        return {"mean": p.mean, "epistemic_std": p.std, "total_std": None, "lower": None, "upper": None}
    lower, upper = p.interval(level)
    return {"mean": p.mean, "epistemic_std": p.std, "total_std": p.total_std, "lower": lower, "upper": upper}


def _columns(targets: Sequence[str], values: Mapping[str, Tensor | None], rows: int) -> list[pl.Series]:
    """The answers as columns of a table."""
    return [
        (pl.repeat(None, rows, dtype=pl.Float64, eager=True) if value is None else pl.Series(value[:, c].numpy())).alias(
            name if len(targets) == 1 else f"{target}_{name}"
        )
        for c, target in enumerate(targets)
        for name, value in values.items()
    ]


def _noise_std(model: TableModel) -> dict[str, Any] | None:
    """The noise found, by target, and by group where there are some."""
    noise = model.noise
    if noise.variances is None:
        return None
    std = noise.variances.sqrt()
    if noise.group is None:
        return dict(zip(model.targets, std[0].tolist(), strict=True))
    return {target: dict(zip(noise.group.categories, std[:-1, c].tolist(), strict=True))
            for c, target in enumerate(model.targets)}  # fmt: skip


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


def _file_name(target: str) -> str:
    """A target's name with nothing in it that a path could stumble over."""
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in target)


def _print_json(record: dict[str, Any]) -> None:
    typer.echo(json.dumps(record, indent=1))


@contextmanager
def _explained() -> Iterator[list[str]]:
    """Warnings as lines on standard error, collected; bad data and options exit with 2, trouble of the machine with 1."""
    said: list[str] = []

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in said:
            said.append(str(message))
            typer.echo(f"warning: {message}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        try:
            yield said
        except ValueError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from error
        except (OSError, RuntimeError, MemoryError) as error:
            typer.echo(f"error: {error or type(error).__name__}", err=True)
            raise typer.Exit(1) from error
