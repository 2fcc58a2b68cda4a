"""A page of the explorer without a browser: its callbacks are called by hand."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("bokeh", reason="Bokeh is not installed")


from bokeh.document import Document

from ntkgp.apps.explorer.model.csv_table import Table
from ntkgp.apps.explorer.model.state import State, start
from ntkgp.apps.explorer.page import app as page_module
from ntkgp.apps.explorer.page.app import Page
from tests.support.explorer_hand import Hand
from tests.support.explorer_states import POINTS, SMALL, TABLE


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
    assert page.live.trained is not None
    run, step = page.live.run, page.live.trained.step
    hand.press(page.controls.train)
    assert page.controls.train.label == "Resume"
    hand.settle(3)
    assert page.live.trained.step <= step + 2
    page.controls["probe"].value = 1.0  # asks elsewhere, trains on
    hand.settle(2)
    assert page.live.run is run
    page.controls["noise_var"].value = 0.0  # another problem
    hand.settle(2)
    assert page.live.run is None
    assert run is not None
    assert run.finished
    hand.press(page.controls.train)
    run = page.live.run
    for destroyed in hand.doc.session_destroyed_callbacks:
        destroyed(None)  # pyright: ignore[reportArgumentType]
    assert run is not None
    assert run.finished
    assert page.live.run is None


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
