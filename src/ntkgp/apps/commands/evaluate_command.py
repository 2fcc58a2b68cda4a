"""``ntkgp evaluate``."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ntkgp.apps.commands.outputs import Force, check_outputs
from ntkgp.apps.commands.shared import (
    Device,
    Drop,
    Json,
    ModelFolder,
    Quiet,
    TableFile,
    check_level,
    explained,
    print_json,
    rows_of,
)
from ntkgp.apps.diagnostics.evaluation import evaluate as evaluated
from ntkgp.apps.diagnostics.report import Report
from ntkgp.apps.tables import folder
from ntkgp.apps.tables.named import numbers
from ntkgp.storage.replace import replacing_files

REPORT = ("report.txt", "report.json", "report.png")


def evaluate(
    model: ModelFolder,
    table: TableFile,
    out: Annotated[Path, typer.Option(help="Folder for report.txt, report.json and report.png.")] = Path("report"),
    level: Annotated[float, typer.Option(help="Probability of the intervals for which the coverage is reported.")] = 0.95,
    force: Force = False,
    drop_missing: Drop = False,
    device: Device = "cpu",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare the predictions of a model with a table of known targets: errors, scores and calibration.

    With several targets, each one gets its own report in a folder with its name. docs/diagnostics.md explains the numbers.

    Example: [bold]ntkgp evaluate model test.csv --out report[/bold]
    """
    with explained() as warned:
        check_level(level)
        fitted = folder.load(model, device)
        columns = fitted.columns
        places = _folders(columns.targets, out)
        check_outputs([place / name for place in places for name in REPORT], force, [table], model)
        data, whole = rows_of(fitted, table, [*columns.targets, *columns.noise], drop_missing)
        found = fitted.predict(data, progress=not quiet)
        y = numbers(data, columns.targets)
        record: dict[str, Any] = {"rows": len(whole), "evaluated": len(data), "targets": {}, "written": []}
        for c, (name, place) in enumerate(zip(columns.targets, places, strict=True)):
            p = found.mapped(lambda t, c=c: t[:, c])
            report = Report(p, y[:, c], evaluated(p, y[:, c]))
            with replacing_files(place, replace=force) as temporary:
                record["written"] += [str(place / path.name) for path in report.save(temporary)]
            scores = report.evaluation.as_dict()
            record["targets"][name] = {**scores, "level": level, "coverage": report.evaluation.coverage(level)}
            if not (as_json or quiet):
                typer.echo(f"{name}: {report}")
                if level != 0.95:
                    typer.echo(
                        f"intervals of level {level:.4g} cover {report.evaluation.coverage(level):.1%} of the observations"
                    )
        if as_json:
            print_json({**record, "warnings": warned})
        elif not quiet:
            typer.echo("wrote " + ", ".join(record["written"]))


def _folders(targets: Sequence[str], out: Path) -> list[Path]:
    """The folder for the report of each target: `out`, or for several targets a folder in it with the name of the target.

    Letters that are not safe in a path become "_"; a number tells equal names apart.
    """
    if len(targets) == 1:
        return [out]
    names: list[str] = []
    for target in targets:
        name = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in target)
        free = (f"{name}-{k}" if k > 1 else name for k in itertools.count(1))
        names.append(next(one for one in free if one not in names))
    return [out / name for name in names]
