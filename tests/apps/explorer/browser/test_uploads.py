"""Files as a person chooses them in a real browser: too large, empty, damaged, the same again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("bokeh", reason="Bokeh is not installed")
pytest.importorskip("selenium", reason="Selenium is not installed")

from tests.apps.explorer.browser.pages import SMALL, link
from tests.support.explorer_tables import GOOD, ODD


def choose(page: Any, field: str, path: Path, *words: str) -> None:
    """Choose a file and wait for the words about it."""
    page.inside(field, "input").send_keys(str(path))
    page.until(lambda: all(word in page.message() for word in words))


def sent(page: Any, field: str) -> list[Any]:
    """What the page has sent: name, size and content of the last file."""
    return page.script("return M(arguments[0]).tags", field)[:3]


def test_a_file_that_is_too_large_is_not_sent_and_the_page_goes_on(page: Any, tmp_path: Path):
    page.open(link(replace(SMALL, tuned=False)))
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(300_000_000)  # a hole: takes no space
    for field, words in (("csv", "the page takes at most 2 MB"), ("restore", "the page takes at most 40 MB")):
        choose(page, field, large, "large has 300.0 MB", words)
        assert sent(page, field) == ["large", 300_000_000, None]
    page.set("rank", 1)
    assert page.value("rank") == 1
    (tmp_path / "good.csv").write_bytes(GOOD)
    choose(page, "csv", tmp_path / "good.csv", "good.csv: 4 rows")
    assert page.number("rows") == "4"


def test_every_odd_table_gets_a_sentence(page: Any, tmp_path: Path):
    page.open(link(replace(SMALL, tuned=False)))
    for k, (content, words) in enumerate(ODD.values()):  # the first one is empty, and no file was read before it
        path = tmp_path / f"odd{k}.csv"
        path.write_bytes(content)
        choose(page, "csv", path, words.replace("my.csv", path.name).replace("&#x27;", "'"))
    (tmp_path / "good.csv").write_bytes(GOOD)
    choose(page, "csv", tmp_path / "good.csv", "good.csv: 4 rows")
    assert page.script("return M('csv').properties.value.is_unset")  # Bokeh, which reads files of any size, has read none


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n"], ids=["empty", "one row"])
def test_the_same_file_again_gets_its_sentence_again(page: Any, tmp_path: Path, content: str):
    page.open(link(replace(SMALL, tuned=False)))
    path = tmp_path / "same.csv"
    path.write_text(content)
    field = page.inside("csv", "input")
    page.script("arguments[0].addEventListener('click', (event) => event.preventDefault())", field)  # no dialog
    for rank in (1, 2):
        page.script("arguments[0].dispatchEvent(new MouseEvent('click', {cancelable: true}))", field)
        assert field.get_attribute("value") == ""  # else the browser says nothing about a file of the same name
        choose(page, "csv", path, "same.csv")
        page.set("rank", rank)  # the next action removes the message
        page.until(lambda: "same.csv" not in page.message())
