"""Files as people upload them: every odd one is answered with a sentence in the page, and the page goes on."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("bokeh", reason="Bokeh is not installed")


from ntkgp.apps.explorer.model.csv_table import MAX_BYTES
from ntkgp.apps.explorer.page.share import MAX_STATE_BYTES
from tests.support.explorer_hand import Hand
from tests.support.explorer_states import SMALL
from tests.support.explorer_tables import GOOD, ODD


@pytest.fixture
def hand() -> Iterator[Hand]:
    made = Hand(replace(SMALL, tuned=False))
    yield made
    made.page.close()


@pytest.mark.parametrize(("content", "words"), ODD.values(), ids=ODD.keys())
def test_an_odd_table_is_answered_and_the_last_one_stays(
    hand: Hand, caplog: pytest.LogCaptureFixture, content: bytes, words: str
):
    page = hand.page
    hand.upload(page.table.file, GOOD)
    assert "my.csv: 4 rows, 2 columns" in page.message.text
    state, shown = page.state, (page.table.text.text, page.table.slice.title.text.text)
    hand.upload(page.table.file, content)
    assert page.message.text.count("class='error'") == 1
    assert words in page.message.text
    assert caplog.records == []
    assert page.state == state
    assert (page.table.text.text, page.table.slice.title.text.text) == shown
    assert (page.table.target.value, page.table.first.options) == ("y", ["x", "y"])
    hand.upload(page.table.file, GOOD.replace(b"x", b"z"))
    assert page.message.text == "<p class='note' role='status'>my.csv: 4 rows, 2 columns of numbers</p>"
    assert page.state.inputs == ("z",)


def test_a_column_of_any_name_can_be_chosen(hand: Hand):
    page = hand.page
    hand.upload(page.table.file, b"(none),b,c\n1,2,3\n2,3,5\n4,3,2\n")
    page.table.second.value = "b"
    assert page.message.text == ""  # neither an error nor the notes about the file
    assert (page.state.target, page.state.inputs) == ("c", ("(none)", "b"))
    page.table.second.value = ""
    assert page.state.inputs == ("(none)",)


def test_notes_about_a_long_table_are_not_lost(hand: Hand):
    rows = "\n".join(f"{k},{k % 7}" for k in range(900))
    hand.upload(hand.page.table.file, f"a,b\n{rows}\n1,inf\n".encode())
    for words in ("my.csv: 900 rows", "1 of 901 rows left out", "The link leaves your table out"):
        assert words in hand.page.message.text


def test_a_file_of_the_largest_size_is_read(hand: Hand):
    hand.upload(hand.page.table.file, GOOD + b"\n" * (MAX_BYTES - len(GOOD)))
    assert "my.csv: 4 rows" in hand.page.message.text


@pytest.mark.parametrize(("field", "limit"), [("table", MAX_BYTES), ("share", MAX_STATE_BYTES)])
def test_a_larger_file_is_refused(hand: Hand, caplog: pytest.LogCaptureFixture, field: str, limit: int):
    """The browser sends only the size of a large file; if content comes nevertheless, its true size counts."""
    upload, before = getattr(hand.page, field).file, hand.page.state
    for size, content in ((limit + 1, None), (300_000_000, None), (limit + 1, "YWFh"), (1, "YWFh" * (limit // 3 + 1))):
        upload.widget.tags = ["my.file", size, content, next(hand.stamps)]
        true = max(size, len(content or "") // 4 * 3)
        assert f"my.file has {true / 1e6:.1f} MB; the page takes at most {limit / 1e6:.0f} MB:" in hand.page.message.text
        assert upload.advice in hand.page.message.text
        hand.page.controls["seed"].value += 1  # the next action removes the message
        assert "MB" not in hand.page.message.text
    assert replace(hand.page.state, seed=before.seed) == before
    assert caplog.records == []


@pytest.mark.parametrize("field", ["table", "share"])
@pytest.mark.parametrize(
    "tags",
    [
        ["a"],
        ["a", "b", "YQ==", 1],
        ["a", 1, "YQ=", 1],
        ["a", 1, "é", 1],
        ["a", 1, 5, 1],
        ["a", None, "", 1],
        ["a", float("inf"), "", 1],
        ["a"] * 5,
    ],
)
def test_a_damaged_message_is_refused(hand: Hand, caplog: pytest.LogCaptureFixture, field: str, tags: list[Any]):
    getattr(hand.page, field).file.widget.tags = tags
    assert "the upload is damaged" in hand.page.message.text
    assert caplog.records == []


def test_a_file_that_the_browser_cannot_read_is_said(hand: Hand):
    hand.page.table.file.widget.tags = ["my.csv", 5, None, 1]
    assert "the browser could not read my.csv" in hand.page.message.text


def test_a_file_that_is_no_state_does_not_end_a_training(hand: Hand):
    hand.press(hand.page.controls.train)
    run = hand.page.live.run
    hand.upload(hand.page.share.file, GOOD)
    assert "not a saved state" in hand.page.message.text
    assert hand.page.live.run is run
    hand.upload(hand.page.share.file, SMALL.to_json().encode())
    assert hand.page.live.run is None
    assert "error" not in hand.page.message.text
