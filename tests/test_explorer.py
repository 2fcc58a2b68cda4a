"""The explorer without a browser: states, numbers, training, tables, exports, and a page whose callbacks are called by hand."""

import base64
import json
import socket
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from explorer_server import running_server
from torch import Tensor
from typer.testing import CliRunner

import ntkgp
from ntkgp.cli import app
from ntkgp.table_files import TableError

pytest.importorskip("bokeh", reason="Bokeh is not installed")

from bokeh.document import Document

from ntkgp.explorer import app as page_module
from ntkgp.explorer import csv_table, export, server, your_data
from ntkgp.explorer.app import Page
from ntkgp.explorer.compute import (
    GRID,
    Kernels,
    Memory,
    Spectrum,
    answer,
    data,
    network,
    queries,
    samples,
    tail_targets,
)
from ntkgp.explorer.csv_table import Table, parse
from ntkgp.explorer.state import LAYERS, MOST_POINTS, State, StateError, start
from ntkgp.explorer.training import Training
from ntkgp.tangent.tangent import Tangent

POINTS = ((-2.0, 1.0), (-1.1, 0.2), (0.5, -0.5), (0.9, 0.1), (2.0, 0.3), (3.3, -1.0))
SMALL = State(points=POINTS, noise_var=0.05, rank=3, width=16)
TABLE = Table(("a", "b", "c"), ((0.0, 1.0, 2.0, 3.0, 9.0), (5.0, 2.0, 4.0, 1.0, 3.0), (1.0, 2.0, 2.5, 4.0, 9.0)))
STATES = {
    "usual": SMALL,
    "paper's": start("paper"),
    "every direction": replace(SMALL, rank=6),
    "more than every direction": replace(SMALL, rank=50),
    "tail": replace(SMALL, tail=7),
    "deep, smooth, scaled": replace(SMALL, depth=3, sharpness=1.0, normalisation="scaled", seed=3),
    "one layer, raw": replace(SMALL, depth=1, normalisation="raw", probe=3.9),
    "little noise": replace(SMALL, noise_var=1e-6),
    "much noise": replace(SMALL, noise_var=10.0),
    "one point": State(points=((1.0, 2.0),), width=16),
    "identical points": State(points=((1.0, 2.0),) * 5, width=16, rank=3),
    "same x": State(points=((1.0, 2.0), (1.0, -2.0), (0.0, 1.0)), width=16, noise_var=1e-4),
}


def referee(state: State) -> oracle.Oracle:
    x, y = data(state)
    return oracle.pose(network(state), x, y, queries(state), state.noise_var)


def every_state() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("state", STATES.values(), ids=STATES.keys())


# States


@every_state()
def test_a_state_survives_json_and_links(state: State):
    state = replace(state, shown=("exact",), table=TABLE, target="c", inputs=("a", "b"))
    assert State.from_json(state.to_json()) == state
    assert State.from_link(state.to_link()) == state
    assert set(state.to_link()) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


BAD = {
    "nothing": b"",
    "not JSON": b"{",
    "not a record": b"[1]",
    "not ours": b'{"points": []}',
    "deep": b"[" * 100_000,
    **{
        name: json.dumps({"ntkgp-explorer": 1, **record}).encode()
        for name, record in {
            "unknown field": {"colour": 1},
            "negative noise": {"noise_var": -1},
            "noise is a text": {"noise_var": "1"},
            "noise is a truth": {"noise_var": True},
            "no noise": {"noise_var": float("nan")},
            "endless noise": {"noise_var": float("inf")},
            "huge number": {"noise_var": 10**400},
            "half a predictor": {"rank": 2.5},
            "no predictors": {"rank": 0},
            "absurd width": {"width": 10**9},
            "absurd depth": {"depth": 1000},
            "unknown problem": {"problem": "../../etc/passwd"},
            "problem is a list": {"problem": []},
            "points are no pairs": {"points": [[1, 2, 3]]},
            "points are no list": {"points": "abc"},
            "a point far away": {"points": [[100, 0]]},
            "too many points": {"points": [[0, 0]] * (MOST_POINTS + 1)},
            "unknown layer": {"shown": ["everything"]},
            "layers are no list": {"shown": "exact"},
            "tuned is a number": {"tuned": 1},
            "table without columns": {"table": {"names": ["a"]}},
            "table is ragged": {"table": {"names": ["a", "b"], "columns": [[1, 2], [1]]}},
            "table of texts": {"table": {"names": ["a", "b"], "columns": [["x", "y"], [1, 2]]}},
            "huge number in a table": {"table": {"names": ["a", "b"], "columns": [[10**400, 1], [1, 2]]}},
            "target not in the table": {
                "table": {"names": ["a", "b"], "columns": [[1, 2], [1, 2]]},
                "target": "z",
                "inputs": ["a"],
            },
            "target is an input": {"table": {"names": ["a", "b"], "columns": [[1, 2], [1, 2]]}, "target": "a", "inputs": ["a"]},
        }.items()
    },
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_what_is_no_state_is_refused_with_a_word(text: bytes):
    with pytest.raises(StateError, match=r"\w+ "):
        State.from_json(text)
    with pytest.raises(StateError):
        State.from_link(base64.urlsafe_b64encode(text).decode())


@pytest.mark.parametrize("letters", ["!!", "é", "a", "AAAA", "%00"])
def test_a_link_that_is_none_is_refused(letters: str):
    with pytest.raises(StateError):
        State.from_link(letters)


# Numbers


@every_state()
def test_all_curves_are_those_of_the_oracle(state: State):
    got, truth = answer(state), referee(state)
    K = min(state.rank, len(state.points))
    tolerance: dict[str, Any] = {"rel": 1e-6, "abs": 1e-9 * float(truth.prior.max()) / min(state.noise_var, 1.0)}
    assert got.rank == K
    assert got.mean.tolist() == pytest.approx(truth.mean.tolist(), **tolerance)
    assert got.exact.tolist() == pytest.approx(truth.variance.tolist(), **tolerance)
    assert got.upper.tolist() == pytest.approx(truth.our_bound(K).diagonal().tolist(), **tolerance)
    assert got.paper.tolist() == pytest.approx(truth.paper_bound(K).diagonal().tolist(), **tolerance)
    head = truth._head(K)[0]
    kept = truth.kernel.diagonal().sum() * 1e-10 < torch.linalg.eigvalsh(truth.kernel).flip(0)[:K]
    for mine, theirs in zip(got.predictors.T[kept], head.T[kept], strict=True):  # each up to its sign
        assert min(oracle.error(mine, theirs), oracle.error(-mine, theirs)) < 1e-5


@every_state()
def test_the_bracket_encloses_and_is_never_looser_than_the_library_s(state: State):
    got = answer(state)
    slack = 1e-9 * got.prior
    assert bool((got.lower >= 0).all())
    for inner in (got.exact, got.variance):
        assert bool((got.lower <= inner + slack).all())
        assert bool((inner <= got.upper + slack).all())
    assert bool((got.upper <= got.paper + slack).all())
    x, y = data(state)
    method = ntkgp.LowRank(rank=got.rank, svd=ntkgp.DenseSVD(), dtype=torch.float64)
    p = ntkgp.fit(network(state), x, y, noise_var=state.noise_var, method=method).predict(queries(state))
    assert bool((p.lower <= got.lower * (1 + 1e-6) + slack).all())
    assert got.upper.tolist() == pytest.approx(
        p.upper.tolist(), rel=1e-5, abs=1e-8 * float(got.prior.max()) / min(state.noise_var, 1)
    )


def test_an_empty_plot_shows_the_prior():
    got = answer(replace(start("empty"), shown=tuple(LAYERS)))
    assert bool((got.mean == 0).all())
    for variance in (got.exact, got.variance, got.lower, got.upper, got.paper):
        assert torch.equal(variance, got.prior)
    assert got.samples.shape == (3, GRID + 1)
    assert "prior" in got.notes[0]


def spectrum_of(state: State) -> tuple[Kernels, Spectrum]:
    x, _ = data(state)
    kernels = Kernels(ntkgp.kernel(network(state), torch.cat([queries(state), x])), len(x))
    return kernels, Spectrum.of(kernels)


def test_tail_predictors_supply_what_the_head_leaves_out():
    state = replace(SMALL, rank=2)
    got, (kernels, spectrum) = answer(state), spectrum_of(state)
    targets = tail_targets(spectrum, 2, 4000, state.noise_var, torch.Generator().manual_seed(0)) * state.noise_var**0.5
    solved = torch.linalg.solve(kernels.train + state.noise_var * torch.eye(len(targets)).double(), targets)
    explained = (kernels.cross @ solved).square().mean(dim=1)
    missing = got.upper - got.exact
    assert oracle.error(explained, missing) < 0.06


def test_samples_have_the_mean_and_the_variance_of_the_posterior():
    state, got = replace(SMALL, samples=10), answer(SMALL)
    kernels, spectrum = spectrum_of(state)
    drawn = torch.cat([samples(kernels, spectrum, data(state)[1], replace(state, seed=seed)) for seed in range(200)])
    assert oracle.error(drawn.mean(dim=0), got.mean) < 0.1
    assert oracle.error(drawn.std(dim=0), got.exact.sqrt()) < 0.05


def test_only_what_changed_is_computed_again(monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []
    at = Tangent.at

    def counted(self: Tangent, x: Tensor) -> Any:
        asked.append(len(x))
        return at(self, x)

    monkeypatch.setattr(Tangent, "at", counted)
    memory = Memory()
    answer(SMALL, memory)
    assert asked == [GRID + 1, 6]
    asked.clear()
    for other in (replace(SMALL, noise_var=0.2), replace(SMALL, rank=1), replace(SMALL, tail=3), replace(SMALL, shown=())):
        assert_same(answer(other, memory), answer(other), asked)
    moved = SMALL.with_point(0.0, 1.0)
    answer(moved, memory)
    assert asked == [7]  # the grid is known
    answer(replace(moved, points=(*moved.points[:-1], (0.0, 2.0))), memory)
    assert asked == [7]  # only a y


def assert_same(got: Any, fresh: Any, asked: list[int]) -> None:
    asked[:] = asked[:-2]  # those of the fresh one
    assert asked == []
    assert torch.equal(got.mean, fresh.mean)
    assert torch.equal(got.variance, fresh.variance)


# Training


def test_training_stops_resumes_and_reaches_the_analytic_answer():
    state = replace(SMALL, width=64, tail=2)
    got = answer(state)
    training = Training(state, got)
    assert training.networks == 1 + 3 + 2
    with pytest.raises(ValueError, match="advance"):
        training.look()
    training.advance(0.0)
    first = training.look()
    assert first.step == 1
    assert torch.equal(training.look().mean, first.mean)  # looking does not train
    while not training.finished:
        training.advance(0.5)
    now = training.look()
    assert now.step > 1
    assert now.mean_error < 0.02 < first.mean_error
    assert now.std_error < 0.02
    assert oracle.error(now.predictors, got.predictors) < 0.02  # signs too
    training.advance(1.0)
    assert training.look().step == now.step


def test_training_begins_at_the_prior_with_adam():
    state = replace(SMALL, trainer="adam", signal=1.0)
    got = answer(state)
    training = Training(state, got)
    training.advance(0.0)
    first = training.look()
    assert oracle.error(first.variance, got.prior) < 1e-3
    training.close()
    training.advance(1.0)
    assert training.finished


def test_there_must_be_something_to_train_on():
    with pytest.raises(StateError, match="add a point"):
        Training(start("empty"), answer(start("empty")))


# Exports


@pytest.mark.parametrize("name", ["usual", "deep, smooth, scaled", "one layer, raw", "more than every direction"])
def test_the_exported_script_gives_the_same_numbers(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    state, session = STATES[name], dict[str, Any]()
    text = export.script(state)
    assert len(text.splitlines()) == 10
    exec(compile(text, "script", "exec"), session)
    got, p, exact = answer(state), session["p"], session["exact"]
    assert (tmp_path / "posterior.png").stat().st_size > 1000
    assert oracle.error(exact.mean, got.mean[:GRID]) < 1e-9
    assert oracle.error(exact.variance, got.exact[:GRID]) < 1e-9
    assert oracle.error(p.mean, got.mean[:GRID]) < 1e-4
    assert oracle.error(p.upper, got.upper[:GRID]) < 1e-9
    assert oracle.error(p.total_std, (got.variance[:GRID] + state.noise_var).sqrt()) < 1e-9


@pytest.mark.parametrize("shown", [(), tuple(LAYERS)], ids=["nothing", "everything"])
def test_pictures(shown: tuple[str, ...]):
    state = replace(SMALL, shown=shown)
    got = answer(state)
    assert export.picture(state, got, "png").startswith(b"\x89PNG")
    assert b"</svg>" in export.picture(state, got, "svg")
    with pytest.raises(ValueError, match="png"):
        export.picture(state, got, "exe")


# Tables


@pytest.mark.parametrize(
    ("content", "words"),
    {
        b"": "is empty",
        b" \n\n": "is empty",
        b"a,b\n1,2\n3": "1 row",
        b"a,b\n1,2\n3,4,5,6": "cannot be read",
        b"a\nb\n": "at least 2 are needed",
        b"a;b\n1;2\n3;4": "separated by commas",
        b"\0\1\2": "not a text file",
        b"a,b\n\xff\xfe,2\n": "cannot be read",
        b"a,b\n1," + b"2" * 2_000_001: "at most 2 MB",
        b",".join(b"c%d" % k for k in range(60)) + b"\n" + (b",".join([b"1"] * 60) + b"\n") * 2: "at most 50",
    }.items(),
)
def test_a_damaged_table_is_refused_with_a_word(content: bytes, words: str):
    with pytest.raises(TableError, match=words):
        parse(content, "my.csv")


def test_what_is_left_out_of_a_table_is_said():
    rows = "\n".join(f"{k},{k % 7},word" for k in range(csv_table.MOST_ROWS + 500))
    table, notes = parse(f"a,b,c\n{rows}\n,1,x\n1e999,2,x\n".encode())
    assert table.names == ("a", "b")
    assert table.rows == csv_table.MOST_ROWS
    assert [note.split()[0] for note in notes] == ["columns", "2", "1000"]
    assert parse(f"a,b,c\n{rows}\n".encode())[0] == parse(f"a,b,c\n{rows}\n".encode())[0]
    with pytest.raises(TableError, match="no column"):
        table.column("z")


def test_a_table_s_posterior_is_the_library_s_in_the_table_s_units():
    state = replace(SMALL, table=TABLE, target="c", inputs=("a", "b"), tuned=False, noise_var=0.1)
    model = your_data.fit(state)
    x, y = torch.tensor(TABLE.columns[:2]).double().T, torch.tensor(TABLE.columns[2]).double()
    scale = (x.mean(dim=0), x.std(dim=0, correction=0)), (y.mean(), y.std(correction=0))
    scaled_x, scaled_y = (x - scale[0][0]) / scale[0][1], (y - scale[1][0]) / scale[1][1]
    net = network(state, 2, ntkgp.TrigonometricInputs.from_data(scaled_x, margin=0.3))
    truth = oracle.pose(net, scaled_x, scaled_y, scaled_x, 0.1)
    p = model.predict(x)
    assert oracle.error(p.mean, scale[1][0] + scale[1][1] * truth.mean) < 1e-9
    assert oracle.error(p.std, scale[1][1] * truth.variance.sqrt()) < 1e-9


def test_the_next_point_is_where_least_is_known():
    state = replace(SMALL, table=TABLE, target="c", inputs=("a",), tuned=False)
    model = your_data.fit(state)
    where, std = your_data.next_point(model)
    assert 3.0 < float(where[0]) < 9.0  # the gap of that column
    grid = torch.linspace(0, 9, 300).double().unsqueeze(1)
    assert std == pytest.approx(float(model.predict(grid).std.max()), rel=1e-2)
    both = your_data.fit(replace(state, inputs=("a", "b")))
    picture = your_data.uncertainty_map(both)
    corner = torch.stack([picture.high[0], picture.low[1]]).unsqueeze(0)
    assert float(picture.std[0, -1]) == pytest.approx(float(both.predict(corner).std), rel=1e-6)  # rows are the second input
    cut = your_data.slice_of(both, 5.0)
    assert float(cut.near[0]) == 1.0
    assert cut.prediction.mean.shape == cut.x.shape


def test_a_constant_column_and_tuning_give_no_trouble():
    table = Table(("a", "b"), ((1.0,) * 6, (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)))
    for chosen in (
        replace(SMALL, table=table, target="b", inputs=("a",)),
        replace(SMALL, table=table, target="a", inputs=("b",)),
    ):
        model = your_data.fit(replace(chosen, tuned=False))
        assert np.isfinite(model.predict(model.x).mean.numpy()).all()
    with pytest.raises(StateError, match="load a table"):
        your_data.fit(SMALL)


# A page


class Hand:
    """A page without a browser: widgets are set and due callbacks called by hand."""

    def __init__(self, state: State):
        self.doc = Document()
        self.page = Page(self.doc, state.to_link(), "http://127.0.0.1:1/")
        self.settle()

    def settle(self, ticks: int = 30) -> None:
        for _ in range(ticks):
            due = list(self.doc.session_callbacks)
            if not due:
                return
            for callback in due:
                if callback in self.doc.session_callbacks:
                    if type(callback).__name__ == "TimeoutCallback":
                        self.doc.callbacks.remove_session_callback(callback)
                    callback.callback()

    def press(self, button: Any) -> None:
        for action in button._event_callbacks["button_click"]:
            action()
        self.settle(2)


@pytest.fixture
def hand() -> Iterator[Hand]:
    made = Hand(SMALL)
    yield made
    made.page.close()


def test_every_widget_sets_its_field_and_shows_it(hand: Hand):
    page = hand.page
    new = {
        "noise_var": (-1.0, 0.1), "rank": (2, 2), "tail": (4, 4), "sharpness": (1.0, 10.0), "width": (5, 32), "depth": (3, 3),
        "normalisation": ("raw", "raw"), "seed": (7, 7), "samples": (5, 5), "probe": (1.5, 1.5), "signal": (-2.0, 0.01),
    }  # fmt: skip
    for field, (shown, expected) in new.items():
        page.controls[field].value = shown
        hand.settle(2)
        assert getattr(page.state, field) == expected
    page.controls["shown"].active = [1, 5]
    hand.settle(2)
    assert page.state.shown == ("total", "samples")
    assert page.answer.samples.shape[0] == 5
    page.controls["trainer"].value = "adam"
    hand.settle(2)
    assert (page.state.trainer, page.state.signal) == ("adam", 1.0)
    page.controls["problem"].value = "step"
    hand.settle(3)
    assert page.state.points == start("step", seed=7).points
    assert page.views.points.data["x"] == [x for x, _ in page.state.points]
    again = Hand(page.state)
    assert {c.field: getattr(c.widget, c.prop) for c in again.page.controls.all} == {
        c.field: getattr(c.widget, c.prop) for c in page.controls.all
    }


def test_trouble_is_said_in_the_page_and_the_page_goes_on(
    hand: Hand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    page = hand.page
    page.controls["seed"].value = None
    assert "seed must be a whole number" in page.message.text
    assert page.controls["seed"].value == 0  # as it was

    def broken(*_: Any) -> None:
        raise RuntimeError("<script>alert(1)</script>")

    with monkeypatch.context() as patched:
        patched.setattr(page_module, "answer", broken)
        page.controls["noise_var"].value = 0.0
        hand.settle(2)
    assert "RuntimeError: &lt;script&gt;" in page.message.text
    assert "an action of the page failed" in caplog.text
    page.controls["noise_var"].value = -2.0
    hand.settle(2)
    assert "RuntimeError" not in page.message.text
    assert page.state.noise_var == 0.01


def test_the_point_that_is_shown_as_chosen_goes(hand: Hand):
    """The list follows the plot a little later; in between, its numbers are those of before."""
    page = hand.page
    chosen = page.controls.chosen_point
    assert chosen == POINTS[-1] == page.state.points[-1]
    page._change(page.state.without_point(1))
    for action in page.controls.delete._event_callbacks["button_click"] * 2:  # by somebody impatient
        action()  # pyright: ignore[reportCallIssue]  # before the list has followed
    assert page.state.points == POINTS[:1] + POINTS[2:-1]
    hand.settle()
    assert "Error" not in page.message.text
    page.controls.chosen.value = "17"  # of a browser that has not heard yet
    hand.press(page.controls.delete)
    assert page.state.points == POINTS[:1] + POINTS[2:-1]


def test_a_bad_link_opens_the_page_with_a_message():
    page = Page(Document(), "nonsense")
    assert "saved state" in page.message.text
    assert page.state == start()
    page = Page(
        Document(), State(points=((0.0, 1.0),), table=TABLE, target="c", inputs=("a",), width=16, tuned=False).to_link()
    )
    assert "data-number='rows'>5" in page.table.text.text


def test_points_by_numbers(hand: Hand):
    page = hand.page
    page.controls.x.value, page.controls.y.value = 1.23456, -0.5
    hand.press(page.controls.add)
    assert page.state.points[-1] == (1.2346, -0.5)
    page.controls.chosen.value = "0"
    hand.press(page.controls.delete)
    assert page.state.points[0] == POINTS[1]
    hand.press(page.controls.clear)
    assert page.state.points == ()
    assert page.controls.delete.disabled
    page.controls.x.value = None
    hand.press(page.controls.add)
    assert "give the new point" in page.message.text


def test_training_ends_with_the_session_and_with_its_problem(hand: Hand):
    page = hand.page
    page.controls["trainer"].value = "adam"
    hand.settle(2)
    hand.press(page.controls.train)
    assert page.controls.train.label == "Stop"
    assert page.trained is not None
    run, step = page.run, page.trained.step
    hand.press(page.controls.train)
    assert page.controls.train.label == "Resume"
    hand.settle(3)
    assert page.trained.step <= step + 2
    page.controls["probe"].value = 1.0  # asks elsewhere, trains on
    hand.settle(2)
    assert page.run is run
    page.controls["noise_var"].value = 0.0  # another problem
    hand.settle(2)
    assert page.run is None
    assert run is not None
    assert run.finished
    hand.press(page.controls.train)
    run = page.run
    for destroyed in hand.doc.session_destroyed_callbacks:
        destroyed(None)  # pyright: ignore[reportArgumentType]
    assert run is not None
    assert run.finished
    assert page.run is None


def test_pages_share_nothing():
    one, other = Hand(SMALL), Hand(SMALL)
    before = other.page.status.text
    one.page.controls["noise_var"].value = 0.0
    one.settle(3)
    assert other.page.state == SMALL
    assert other.page.status.text == before
    shared = {id(model) for model in one.doc.models} & {id(model) for model in other.doc.models}
    assert shared == set()


def test_a_table_too_long_for_a_link_is_left_out_of_it():
    column = tuple(map(float, range(900)))
    table = Table(("a", "b"), (column, tuple(x % 17 for x in column)))
    page = Page(Document(), None)
    page.state = replace(SMALL, table=table, target="b", inputs=("a",))
    page._settle()
    assert State.from_link(page.share.link.value.split("state=")[1]).table is None
    assert "leaves your table out" in page.message.text


# The server and the command


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with running_server() as (address, _):
        yield address


def test_the_page_needs_nothing_from_elsewhere(address: str):
    with urllib.request.urlopen(address) as reply:
        text = reply.read().decode()
    assert "ntkgp explorer" in text
    assert [part for part in text.split('"') if part.startswith(("http://", "https://", "//"))] == []


def test_only_its_own_pages_may_talk_to_it(address: str):
    port = int(address.rstrip("/").rsplit(":", 1)[1])
    assert upgrade(port, f"http://127.0.0.1:{port}") != 403
    assert upgrade(port, f"http://localhost:{port}") != 403
    for origin in ("http://evil.example", f"http://evil.example:{port}", "http://127.0.0.1:1", "null"):
        assert upgrade(port, origin) == 403


def upgrade(port: int, origin: str) -> int:
    """The answer to opening a websocket from a page of that origin."""
    lines = ["GET /ws HTTP/1.1", f"Host: 127.0.0.1:{port}", "Upgrade: websocket", "Connection: Upgrade", f"Origin: {origin}",
             "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: " + base64.b64encode(b"0" * 16).decode(), "", ""]  # fmt: skip
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall("\r\n".join(lines).encode())
        return int(connection.recv(64).split()[1])


def test_it_listens_on_loopback_alone(address: str):
    port = int(address.rstrip("/").rsplit(":", 1)[1])
    with open("/proc/net/tcp") as table:
        local = [line.split()[1] for line in table.readlines()[1:] if line.split()[3] == "0A"]
    assert [place for place in local if place.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


def test_a_port_in_use_is_said(address: str):
    port = int(address.rstrip("/").rsplit(":", 1)[1])
    with pytest.raises(ValueError, match="--port"):
        server.free_port(port)
    done = CliRunner().invoke(app, ["explore", "--no-browser", "--port", str(port)])
    assert done.exit_code == 2
    assert "--port" in done.stderr


def test_a_missing_extra_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = CliRunner().invoke(app, ["explore"])
    assert done.exit_code == 2
    assert "ntkgp[app]" in " ".join(done.stderr.replace("│", " ").split())
