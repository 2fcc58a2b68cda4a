"""The command line: models of tables, the paper's figure, the explorer. Needs the extra ``ntkgp[cli]``."""

import importlib.util
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ntkgp.apps.commands import evaluate_command, fit_command, predict_command
from ntkgp.apps.commands.outputs import Force, check_outputs
from ntkgp.apps.commands.shared import explained
from ntkgp.apps.figure1 import figure, toys
from ntkgp.posterior.trained.training.accelerated import AcceleratedGD
from ntkgp.posterior.trained.training.adam import Adam
from ntkgp.posterior.trained.training.trainer import Trainer
from ntkgp.storage.replace import replacing_files

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False, rich_markup_mode="rich")


class TrainerName(str, Enum):
    """Names of the trainers on the command line."""

    accelerated = "accelerated"
    adam = "adam"


@app.callback()
def main() -> None:
    """Know what your neural network does not know: the NTK Gaussian-process posterior of PyTorch networks."""


app.command(no_args_is_help=True)(fit_command.fit)


app.command(no_args_is_help=True)(predict_command.predict)


app.command(no_args_is_help=True)(evaluate_command.evaluate)


@app.command()
def figure1(
    out: Annotated[Path, typer.Option(help="Folder for figure1.png and figure1.json.")] = Path("figure1"),
    problem: Annotated[str, typer.Option(help=f"Toy problem: {', '.join(toys.TOYS)}.")] = "paper",
    trainer: Annotated[TrainerName, typer.Option(help="Algorithm that trains the networks.")] = TrainerName.accelerated,
    signal: Annotated[
        float | None, typer.Option(help="Scale of the targets during training; the paper uses 1 with adam.")
    ] = None,
    max_steps: Annotated[int | None, typer.Option(help="Stop training after this number of steps.")] = None,
    rank: Annotated[int, typer.Option(help="Number K of eigenvectors.")] = 5,
    tail: Annotated[int, typer.Option(help="Number T of tail predictors in our gradient-descent panel.")] = 20,
    width: Annotated[int, typer.Option(help="Width of the hidden layers.")] = 512,
    seed: Annotated[int, typer.Option(help="Seed of the data and the network.", min=0, max=2**63 - 1)] = 0,
    force: Force = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no progress bar and no table.")] = False,
) -> None:
    """Reproduce Figure 1 of the paper and add two panels with our method.

    Examples: [bold]ntkgp figure1 --out figure1[/bold] (takes seconds); with the paper's own training (takes minutes):
    [bold]ntkgp figure1 --trainer adam --signal 1 --tail 0[/bold].
    """
    options = {key: value for key, value in {"signal": signal, "max_steps": max_steps}.items() if value is not None}
    with explained():
        check_outputs([out / name for name in ("figure1.png", "figure1.json")], force)
        chosen: Trainer = {TrainerName.accelerated: AcceleratedGD, TrainerName.adam: Adam}[trainer](**options)
        settings = figure.Settings(problem=problem, seed=seed, width=width, rank=rank, tail=tail)
        result = figure.compute(settings, chosen, progress=not quiet)
        with replacing_files(out, replace=force) as temporary:
            written = [out / path.name for path in figure.write(result, temporary)]
    if not quiet:
        console = Console()
        console.print(_table(result))
        console.print(f"{len(result.trained.steps)} networks trained in {result.trained.seconds:.1f} s")
        console.print("wrote " + ", ".join(map(str, written)))


@app.command()
def explore(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0 chooses a free port.")] = 5006,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Another host in the address of the page, behind a tunnel or proxy; repeat for several."),
    ] = None,
) -> None:
    """Add points in a browser page and watch the posterior change.

    Only this machine can open the page (127.0.0.1). Example: [bold]ntkgp explore --port 0 --no-browser[/bold].

    Through a tunnel from port 8000: [bold]ntkgp explore --no-browser --allow-host localhost:8000[/bold]
    """
    if importlib.util.find_spec("bokeh") is None:
        raise typer.BadParameter("the explorer needs Bokeh, which is not installed: run pip install 'ntkgp[app]'")
    server = importlib.import_module("ntkgp.apps.explorer.server")  # imported here because it needs the extra ntkgp[app]
    try:
        server.serve(port, browser, allow_host or [])
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _table(result: figure.Figure1) -> Table:
    table = Table("panel", "against", "mean", "std", title="Relative L2 errors")
    for name, error in result.errors.items():
        table.add_row(name, str(error["against"]), f"{error['mean']:.3%}", f"{error['std']:.3%}")
    return table
