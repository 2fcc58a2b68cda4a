"""Tables and commands that cannot be used: exit code 2 and the culprit; odd tables that can: an answer."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

import ntkgp
from ntkgp.apps.tables import fitting
from ntkgp.apps.tables import folder as table_folder
from ntkgp.apps.tables.columns import Column
from ntkgp.apps.tables.named import NamedColumns, fit_named
from ntkgp.apps.tables.options import TableOptions
from ntkgp.cli import app
from tests.support.long_form import recorded
from tests.support.unchanged import unchanged

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture(autouse=True, scope="module")
def _recorded(request: pytest.FixtureRequest) -> Iterator[None]:
    with recorded("bad_commands", request, lambda: {"tables": len(TABLES) + len(ANSWERED), "commands": len(COMMANDS)}):
        yield


GOOD = "a,b,kind,y\n" + "\n".join(f"{k},{k * k},{'uv'[k % 2]},{k % 5}" for k in range(16)) + "\n"
SMALL = ["--width", "4", "--steps", "2", "--starts", "1", "--quiet"]
TABLES: dict[str, tuple[bytes | str, list[str]]] = {
    "an empty file": ("", ["cannot be read"]),
    "a header alone": ("a,b,kind,y\n", ["has no rows"]),
    "no such target": (GOOD.replace(",y", ",z"), ["no column 'y'"]),
    "a missing value": (
        GOOD.replace("3,9,", ",9,"),
        ["column 'a' has a missing value", "in 1 of 16 rows", "row 4", "--drop-missing"],
    ),
    "NaN": (GOOD.replace("3,9,", "NaN,9,"), ["column 'a' has a missing value"]),
    "a question mark": (GOOD.replace("3,9,", "?,9,"), ["column 'a' has a missing value", "in 1 of 16 rows", "row 4"]),
    "infinity": (GOOD.replace("3,9,", "inf,9,"), ["column 'a' holds infinity in 1 of 16 rows", "row 4"]),
    "a word among numbers": (GOOD.replace("3,9,", "three,9,"), ["1 of 16 rows: 'three' in row 4", "--categorical a"]),
    "texts for targets": ("a,y\n1,u\n2,v\n", ["'y' must hold numbers", "'u' in row 1"]),
    "targets alone": ("y\n1\n2\n", ["no column left for features"]),
    "rows of different lengths": ("a,y\n1,2\n1,2,3\n", ["cannot be read"]),
    "the same column twice": ("a,a,y\n1,2,3\n", ["two columns 'a'", "rename"]),
    "no text": (bytes(range(256)), ["no column 'y'"]),
    "values of 1e300": ("a,y\n1e300,1\n-1e300,2\n3,4\n", ["column 'a'", "rescale"]),
    "targets of 1e300": ("a,y\n1,1e300\n2,-1e300\n3,4\n", ["column 'y'", "rescale"]),
}
ANSWERED = {
    "one row": "a,y\n1,2\n",
    "constant features": "a,y\n" + "1,2\n1,3\n" * 4,
    "constant targets": "a,y\n" + "1,2\n2,2\n3,2\n" * 2,
    "the same row with different targets": "a,y\n1,2\n1,3\n1,4\n2,5\n",
    "features of 1e-300": "a,y\n1e-300,1\n2e-300,3\n4e-300,1\n",
    "values of 1e100": "a,y\n1e100,1e100\n-1e100,-2e100\n3e100,1e100\n",
    "a name with odd letters": 'a,"y/../é"\n1,2\n2,3\n3,4\n',
}
NEW = ["--out", "new"]
COMMANDS: dict[str, tuple[list[str], list[str]]] = {
    "width 0": (["fit", "good.csv", "--target", "y", "--width", "0"], ["width must be at least 1"]),
    "no steps": (["fit", "good.csv", "--target", "y", "--steps", "0"], ["steps must be at least 1"]),
    "no starts": (["fit", "good.csv", "--target", "y", "--starts", "0"], ["starts must be at least 1"]),
    "rank 0": (["fit", "good.csv", "--target", "y", "--rank", "0"], ["rank must be at least 1"]),
    "tuned on no rows": (["fit", "good.csv", "--target", "y", "--max-rows-tuning", "0"], ["points must be at least 1"]),
    "a seed of 30 digits": (["fit", "good.csv", "--target", "y", "--seed", "1" * 30], ["seed"]),
    "the same target twice": (["fit", "good.csv", "--target", "y", "--target", "y"], ["'y'", "twice"]),
    "a target that is ignored": (["fit", "good.csv", "--target", "y", "--ignore", "y"], ["'y'"]),
    "an unknown device": (["fit", "good.csv", "--target", "y", "--device", "gpu"], ["expected cpu"]),
    "noise without columns": (["fit", "good.csv", "--target", "y", "--noise-column", "n"], ["no column 'n'"]),
    "negative noise": (["fit", "good.csv", "--target", "y", "--noise-column", "a", *NEW], ["'a' must hold positive variances"]),
    "noise of texts": (["fit", "good.csv", "--target", "y", "--noise-column", "kind", *NEW], ["'kind' must hold numbers"]),
    "no table": (["fit", "none.csv", "--target", "y"], ["there is no file"]),
    "a folder of tables that differ": (["fit", ".", "--target", "y", *NEW], ["short.csv has no column"]),
    "a folder without tables": (["fit", "model", "--target", "y"], ["model"]),
    "a table of no kind": (["fit", "table.xyz", "--target", "y"], ["must end in .csv"]),
    "no model": (["predict", "none", "good.csv"], ["there is no model"]),
    "no table to predict": (["predict", "model", "none.csv"], ["there is no file"]),
    "level 2": (["predict", "model", "good.csv", "--level", "2"], ["level"]),
    "level NaN": (["predict", "model", "good.csv", "--level", "nan"], ["level"]),
    "a model that exists": (["fit", "good.csv", "--target", "y"], ["model/model.json exists already", "--force"]),
    "a picture of predictions": (["predict", "model", "good.csv", "--out", "p.png"], ["must end in .csv"]),
    "a table without a column": (["predict", "model", "short.csv"], ["no column 'b'"]),
    "predictions over the table": (["predict", "model", "good.csv", "--out", "good.csv"], ["good.csv is a file that", "reads"]),
    "level -1": (["evaluate", "model", "good.csv", "--level", "-1"], ["level"]),
    "no targets to evaluate": (["evaluate", "model", "short.csv"], ["no column"]),
    "evaluate no model": (["evaluate", "none", "good.csv"], ["there is no model"]),
    "an unknown problem": (["figure1", "--problem", "none"], ["problem must be one of"]),
    "no training": (["figure1", "--max-steps", "0"], ["max_steps"]),
    "no signal": (["figure1", "--signal", "0"], ["signal"]),
    "no eigenvectors": (["figure1", "--rank", "0", "--width", "8"], ["rank"]),
    "a figure of width 0": (["figure1", "--width", "0"], ["width"]),
    "a figure's seed of 30 digits": (["figure1", "--width", "8", "--seed", "1" * 30], ["seed"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table and a model; without trained features, which take most of the time."""
    home = tmp_path_factory.mktemp("home")
    (home / "good.csv").write_text(GOOD)
    (home / "short.csv").write_text("a,kind\n1,u\n2,v\n")
    (home / "table.xyz").write_text(GOOD)
    columns = (Column("a", "number"), Column("b", "number"), Column("kind", "category", ("u", "v")))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = fit_named(
            pl.read_csv(home / "good.csv"), NamedColumns(columns, ("y",)), TableOptions(width=4, steps=2, starts=1)
        )
    table_folder.save(model, home / "model")
    return home


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        fitting, "tune_table", lambda x, y, **options: ntkgp.tune_table(x, y, **{**options, "warm_networks": 0})
    )


def said(*arguments: Any, code: int) -> str:
    """What a command said on standard error, unwrapped; no traceback, and nothing changed."""
    with unchanged(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit | None), result.exception
    return " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("what", TABLES)
def test_tables_that_cannot_be_fitted(what: str, tmp_path: Path):
    content, words = TABLES[what]
    path = tmp_path / "table.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    text = said("fit", path, "--target", "y", "--out", tmp_path / "model", *SMALL, code=2)
    assert [word for word in words if word not in text] == [], text


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("what", ANSWERED)
def test_odd_tables_that_can_be_fitted(what: str, tmp_path: Path):
    (tmp_path / "table.csv").write_text(ANSWERED[what])
    table = pl.read_csv(tmp_path / "table.csv")
    target = table.columns[1]
    said("fit", tmp_path / "table.csv", "--target", target, "--out", tmp_path / "model", *SMALL, code=0)
    said("predict", tmp_path / "model", tmp_path / "table.csv", "--out", tmp_path / "p.csv", "--quiet", code=0)
    found = pl.read_csv(tmp_path / "p.csv")
    assert len(found) == len(table)
    assert all(series.is_finite().all() for series in found)
    assert bool((found["total_std"] >= found["epistemic_std"]).all())
    spread = table[target].abs().to_numpy().max() or 1.0
    assert float((found["mean"] - table[target].mean()).abs().max()) <= 3 * spread
    said("evaluate", tmp_path / "model", tmp_path / "table.csv", "--out", tmp_path / "report", "--quiet", code=0)


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("what", COMMANDS)
def test_commands_that_cannot_be_run(what: str, home: Path, monkeypatch: pytest.MonkeyPatch):
    arguments, words = COMMANDS[what]
    monkeypatch.chdir(home)
    quiet = [*SMALL[:-1], "--quiet"] if arguments[0] == "fit" else ["--quiet"]
    given = [option for k, option in enumerate(quiet) if option not in arguments and (k == 0 or quiet[k - 1] not in arguments)]
    text = said(*arguments, *given, code=2)
    assert [word for word in words if word not in text] == [], text
    assert sorted(path.name for path in home.iterdir()) == ["good.csv", "model", "short.csv", "table.xyz"]
