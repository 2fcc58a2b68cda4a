"""``ntkgp evaluate``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ntkgp.apps.commands.shared import Device, Drop, Json, ModelFolder, Quiet, TableFile, explained, print_json, rows_of
from ntkgp.apps.diagnostics.evaluation import evaluate as evaluated
from ntkgp.apps.diagnostics.report import Report
from ntkgp.apps.tables import folder
from ntkgp.apps.tables.columns import TableError
from ntkgp.apps.tables.named import numbers
from ntkgp.posterior.prediction import Prediction


def evaluate(
    model: ModelFolder,
    table: TableFile,
    out: Annotated[Path, typer.Option(help="Folder for report.txt, report.json and report.png.")] = Path("report"),
    level: Annotated[float, typer.Option(help="Probability of the intervals for which the coverage is reported.")] = 0.95,
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
        if not 0 < level < 1:
            raise TableError(f"level must be between 0 and 1, got {level!r}; write 95 % as 0.95")
        fitted = folder.load(model, device)
        columns = fitted.columns
        data, whole = rows_of(fitted, table, [*columns.targets, *columns.noise], drop_missing)
        found = fitted.predict(data, progress=not quiet)
        y = numbers(data, columns.targets)
        record: dict[str, Any] = {"rows": len(whole), "evaluated": len(data), "targets": {}, "written": []}
        for c, name in enumerate(columns.targets):
            p = Prediction(*(t[:, c] for t in vars(found).values()))
            report = Report(p, y[:, c], evaluated(p, y[:, c]))
            place = out if len(columns.targets) == 1 else out / _file_name(name)
            record["written"] += [str(path) for path in report.save(place)]
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


def _file_name(target: str) -> str:
    """The name of a target with characters that are safe in a path."""
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in target)
