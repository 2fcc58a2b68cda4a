"""Files from nowhere: damaged at random, or forged and signed again. Refused with the right error, or loaded and harmless.

No crash, no hang, no code run, nothing read beside the given path: an audit hook of the interpreter watches. `NTKGP_LONG=1`
tries more than 10⁵ files and keeps the count.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest
import torch
from torch import nn

import ntkgp
from ntkgp.apps.tables import folder as table_folder
from ntkgp.apps.tables import reading as table_files
from ntkgp.apps.tables.columns import Column, TableError, encode
from ntkgp.apps.tables.named import NamedColumns, fit_named
from ntkgp.apps.tables.options import TableOptions
from ntkgp.apps.tables.reading import collect, complete, read
from ntkgp.posterior.prediction import Prediction
from tests.support.helpers import METHODS
from tests.support.long_form import LONG, recorded
from tests.support.mutate import damaged, forged, forged_facts

pytestmark = pytest.mark.usefixtures("unchecked")
TIMES = int(os.environ.get("NTKGP_FUZZ", 250 if LONG else 1))
COUNTS: dict[str, int] = {}
# Where the interpreter and torch may look, whatever the file says: how much memory there is.
HARMLESS = ("/proc/meminfo", f"/proc/{os.getpid()}/statm", "/sys/fs/cgroup", "/dev/null")
# Code that is made by them comes from no file: modules that are first needed now, and the shape checker of these tests.
TRUSTED = ("importlib", "jaxtyping", "beartype")
FORBIDDEN = ("exec", "compile", "os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen", "socket.connect",
             "pickle.find_class", "ctypes.dlopen", "marshal.loads")  # fmt: skip


class Guard:
    """Remembers what is opened and run while it is on duty."""

    def __init__(self):
        self.inside: str | None = None
        self.seen: list[str] = []
        sys.addaudithook(self.hook)

    def hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.inside is None or event not in ("open", *FORBIDDEN):
            return
        if str(sys._getframe(1).f_globals.get("__name__")).startswith(TRUSTED):
            return
        if event == "open" and isinstance(arguments[0], int):  # a file that is open already
            return
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if not path.startswith((self.inside, *HARMLESS)):
                self.seen.append(f"open {path}")
        else:
            self.seen.append(f"{event} {str(arguments)[:100]}")

    @contextlib.contextmanager
    def watching(self, folder: Path) -> Iterator[None]:
        self.inside, self.seen = os.path.realpath(folder), []
        try:
            yield
        finally:
            self.inside = None
        assert self.seen == []


GUARD = Guard()


@pytest.fixture(autouse=True, scope="module")
def _recorded(request: pytest.FixtureRequest) -> Iterator[None]:
    with recorded("files", request, lambda: {"mutated": sum(COUNTS.values()), "by_kind": COUNTS}):
        yield


def harmless(kind: str, times: int, folder: Path, make: Callable[[random.Random], object], use: Callable[[], None]) -> int:
    """`make` a file and `use` it, so often; only ValueErrors may come of it, soon. How many got through."""

    def stop(*_: object) -> None:
        raise AssertionError("it hangs")

    through, before = 0, signal.signal(signal.SIGALRM, stop)
    for seed in range(times * TIMES):
        make(random.Random(f"{kind} {seed}"))
        signal.alarm(600)  # by the wall, however busy the machine
        try:
            with GUARD.watching(folder), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                use()
            through += 1
        except ValueError as error:
            assert str(error), f"seed {seed}"  # noqa: PT017
        except BaseException as error:
            raise AssertionError(f"{kind}, seed {seed}: {type(error).__name__}: {error}") from error
        finally:
            signal.alarm(0)
        COUNTS[kind] = COUNTS.get(kind, 0) + 1
    signal.signal(signal.SIGALRM, before)
    return through


def sane(p: Prediction) -> None:
    """What a forged posterior says may be wrong, but it is never NaN and never a negative variance."""
    for part in (p.mean, p.variance, p.lower, p.upper):
        assert bool(torch.isfinite(part).all())
    assert bool((p.variance >= 0).all())
    assert bool((p.lower <= p.upper).all())


X = torch.linspace(-1, 1, 4, dtype=torch.float64).unsqueeze(1)


def net() -> nn.Module:
    return ntkgp.mlp(1, width=2, depth=1, generator=torch.Generator().manual_seed(0)).double()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Posteriors of every kind, one of them updated."""
    path, found = tmp_path_factory.mktemp("files") / "p.safetensors", {}
    for name, method in METHODS.items():
        posterior = ntkgp.fit(net(), X, X[:, 0].sin(), noise_var=0.1, method=method, generator=torch.Generator().manual_seed(0))
        posterior.save(path)
        found[name] = path.read_bytes()
    ntkgp.fit(net(), X, X[:, 0], noise_var=0.1).update(X + 2, X[:, 0]).save(path)
    found["updated"] = path.read_bytes()
    return found


KINDS = [*METHODS, "updated"]


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_posteriors(kind: str, files: dict[str, bytes], tmp_path: Path):
    path, module = tmp_path / "p.safetensors", net()

    def make(draw: random.Random) -> None:
        content = damaged(files[kind], draw)
        path.write_bytes(content if content != files[kind] else content[:-1])

    assert harmless(f"damaged {kind}", 50, tmp_path, make, lambda: sane(ntkgp.load(path, module).predict(X))) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_forged_posteriors(kind: str, files: dict[str, bytes], tmp_path: Path):
    path, module = tmp_path / "p.safetensors", net()

    def use() -> None:
        posterior = ntkgp.load(path, module)
        sane(posterior.predict(X))
        assert bool(torch.isfinite(posterior.covariance(X)).all())

    harmless(f"forged {kind}", 30, tmp_path, lambda draw: path.write_bytes(forged(files[kind], draw)), use)


TABLE = pl.DataFrame({
    "size": [1.5, 2.0, -3.25, 4.0, 0.0, 7.5], "rooms": [1, 2, 3, 4, 5, 6], "town": ["Ghent", "Lier"] * 3,
    "lift": [True, False, True, True, False, False], "price": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
})  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a table."""
    folder = tmp_path_factory.mktemp("model") / "model"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        columns = NamedColumns(tuple(Column.of(TABLE[name]) for name in TABLE.columns[:-1]), ("price",))
        table_folder.save(fit_named(TABLE, columns, TableOptions(width=2, steps=2, starts=1)), folder)
    return folder


def test_models(model: Path, tmp_path: Path):
    """Any of its files damaged; its JSON forged."""
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    good = {path.name: path.read_bytes() for path in model.iterdir()}

    def restore() -> None:
        for name, content in good.items():
            (folder / name).write_bytes(content)

    def damage(draw: random.Random) -> None:
        restore()
        name = draw.choice(sorted(good))
        content = damaged(good[name], draw)
        if content == good[name] or (name == table_folder.FACTS and content.split() == good[name].split()):
            content = content[:-9]
        (folder / name).write_bytes(content)

    def forge(draw: random.Random) -> None:
        restore()
        (folder / table_folder.FACTS).write_text(forged_facts(good[table_folder.FACTS].decode(), draw))

    def use() -> None:
        fitted = table_folder.load(folder)
        sane(fitted.predict(collect(TABLE.lazy(), fitted.needed, folder)))

    use()
    harmless("damaged model", 40, tmp_path, damage, use)
    harmless("forged model", 40, tmp_path, forge, use)


class Trial:
    """The library's trial in another process, as many times over in one process, which starts again where it is ended."""

    CODE = """
import sys
for line in sys.stdin:
    try:
        sys.argv[1:] = [line.rstrip()]
        exec({trial!r})
    except BaseException:
        pass
    print("survived", flush=True)
"""

    def __init__(self):
        self.process: subprocess.Popen[str] | None = None
        self.ended = 0

    def __call__(self, path: Path, source: str) -> None:
        if self.process is None:
            inside, GUARD.inside = GUARD.inside, None  # this process is ours, not the file's
            command = [sys.executable, "-c", self.CODE.format(trial=table_files.DECODE_SCRIPT)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
            self.process = subprocess.Popen(command, **pipes)
            GUARD.inside = inside
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(source, file=self.process.stdin, flush=True)
        if not self.process.stdout.readline():
            self.process, self.ended = None, self.ended + 1
            raise TableError("a process that read it was ended")

    def close(self) -> None:
        if self.process is not None:
            self.process.communicate()


@pytest.fixture
def _quick_trial(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    trial = Trial()
    monkeypatch.setattr(table_files, "_check_decodes", trial)
    yield
    trial.close()


def test_a_parquet_file_that_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As one does whose page says that it holds 2⁶¹ values: polars asks for as many bytes, and Rust aborts."""
    path = tmp_path / "table.parquet"
    TABLE.write_parquet(path)
    monkeypatch.setattr(table_files, "DECODE_SCRIPT", "import os; os.abort()")
    with pytest.raises(TableError, match="ended by SIGABRT"):
        read(path)


@pytest.mark.usefixtures("_quick_trial")
@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
def test_tables(kind: str, tmp_path: Path):
    path = tmp_path / f"table.{kind}"
    if kind == "parquet":
        TABLE.write_parquet(path)
    else:
        TABLE.write_csv(path, separator="," if kind == "csv" else "\t")
    good = path.read_bytes()

    def use() -> None:
        frame = read(path)
        names = frame.collect_schema().names()
        table = collect(frame, names, path)
        table = table.filter(complete(table, path, True))
        encode(table, [Column.of(table[name]) for name in names])

    use()  # what is imported at the first use is no surprise
    harmless(f"damaged {kind}", 60, tmp_path, lambda draw: path.write_bytes(damaged(good, draw)), use)


@pytest.mark.parametrize("part", [table_folder.FACTS, table_folder.NETWORK, table_folder.POSTERIOR])
def test_links_in_models_are_refused(part: str, model: Path, tmp_path: Path):
    """Reading through one could show, and writing through one destroy, what lies outside of the folder."""
    folder, outside = tmp_path / "model", tmp_path / "outside"
    shutil.copytree(model, folder)
    link = next(folder.glob(f"{part}*"))
    link.rename(outside)
    link.symlink_to(outside)
    with GUARD.watching(folder), pytest.raises(TableError, match="symbolic link"):
        table_folder.load(folder)
    before = {path: path.read_bytes() for path in (outside, *folder.iterdir())}
    if part == table_folder.FACTS:
        with pytest.raises(ValueError, match="got a link"):
            table_folder.save(table_folder.load(model), folder)
        assert before == {path: path.read_bytes() for path in (outside, *folder.iterdir())}
    else:
        table_folder.save(table_folder.load(model), folder)
        assert before[outside] == outside.read_bytes()


@pytest.mark.parametrize("name", ["../outside", "network.safetensors/../../outside", "network-0123456789abcdef.safetensors\n"])
def test_files_outside_of_models_are_not_read(name: str, model: Path, tmp_path: Path):
    folder, outside = tmp_path / "model", tmp_path / "outside"
    shutil.copytree(model, folder)
    facts = json.loads((folder / table_folder.FACTS).read_text())
    network = next(file for file in facts["files"] if file.startswith("network"))
    shutil.copy(folder / network, outside)
    facts["files"][name] = facts["files"].pop(network)
    facts.pop("sha256")
    (folder / table_folder.FACTS).write_text(json.dumps({"sha256": table_folder._signature(facts), **facts}))
    with GUARD.watching(folder), pytest.raises(TableError, match=r"model.json must name one network file, got \[\]"):
        table_folder.load(folder)


def test_a_name_with_brackets_is_no_pattern(tmp_path: Path):
    """Polars would take table[1].csv for a pattern, and read table1.csv."""
    for kind in ("csv", "parquet"):
        asked, other = tmp_path / f"table[1].{kind}", tmp_path / f"table1.{kind}"
        for path, value in ((asked, 1.0), (other, 2.0)):
            frame = pl.DataFrame({"a": [value]})
            frame.write_csv(path) if kind == "csv" else frame.write_parquet(path)
        assert collect(read(asked), ["a"], asked)["a"].to_list() == [1.0]


def test_a_description_that_asks_for_the_moon_takes_no_memory():
    from ntkgp.networks.description import rebuild

    layer = {"kind": "NTKLinear", "in_features": 10**6, "out_features": 10**6, "bias": True, "gain": 1.0}
    with pytest.raises(ValueError, match=r"asks for .* weights, but the file holds only 100"):
        rebuild({"kind": "Sequential", "parts": {"0": layer}}, 100)


def test_the_guard_sees():
    """What the other tests rely on."""
    with tempfile.TemporaryDirectory() as folder:
        with pytest.raises(AssertionError, match="open /etc/passwd"), GUARD.watching(Path(folder)):
            open("/etc/passwd").close()
        with pytest.raises(AssertionError, match="compile"), GUARD.watching(Path(folder)):
            eval("1 + 1")
