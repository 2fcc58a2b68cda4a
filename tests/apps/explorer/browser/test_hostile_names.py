"""Names in a table or file that look like HTML, a script or TeX are shown as they are, and nothing in them runs."""

import base64
import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("bokeh", reason="Bokeh is not installed")
pytest.importorskip("selenium", reason="Selenium is not installed")

from ntkgp.apps.explorer.model.state import State
from tests.apps.explorer.browser.pages import SMALL, link

SCRIPT, IMAGE = "<script>window.hacked=1</script>", "<img src=x onerror=window.hacked=1>"
TEX = r"$$\href{javascript:window.hacked=1}{x}$$"  # MathJax would make it a link
CLOSING = '</textarea></title><svg onload=\'window.hacked=1\'>" onfocus="window.hacked=1" autofocus="'
NAMES = (SCRIPT, IMAGE, TEX, CLOSING)
# Elements of any shadow tree that only a name can have brought in.
BROUGHT_IN = """
const found = []
const look = (root) => {
  for (const el of root.querySelectorAll("*")) {
    if (el.shadowRoot) look(el.shadowRoot)
    const javascript = [...el.attributes].some((a) => a.name.startsWith("on") || a.value.startsWith("javascript:"))
    if (javascript || el.matches("img, mjx-container, [autofocus]") || (el.matches("script") && root !== document))
      found.push(el.outerHTML)
  }
}
look(document)
return found
"""


def assert_harmless(page: Any) -> None:
    assert page.script(BROUGHT_IN) == []
    assert page.script("return typeof window.hacked") == "undefined"


def assert_shown(page: Any, target: str, inputs: tuple[str, ...]) -> None:
    """The names stand in the page, letter by letter, and in the figures as plain text, which Bokeh does not parse."""
    page.until(lambda: page.script("return M('data_slice').below[0].axis_label?.text") == inputs[0])
    places = (page.number("next") or "").split(", ")
    assert [place.rsplit(" = ", 1)[0] for place in places] == list(inputs)
    plain = "return [M('data_slice').title.text, M('data_slice').below[0].axis_label, M('data_slice').left[0].axis_label]"
    title, across, up = page.script(plain + ".map((t) => [t.type, t.text])")
    assert (across, up) == (["PlainText", inputs[0]], ["PlainText", target])
    assert title[0] == "PlainText"
    assert title[1].startswith(f"Posterior of {target}")
    if len(inputs) == 2:
        assert f" at {inputs[1]} = " in title[1]
        labels = "return [M('data_map').below[0].axis_label, M('data_map').left[0].axis_label].map((t) => [t.type, t.text])"
        assert page.script(labels) == [["PlainText", name] for name in inputs]
    options = (
        "return [...V(arguments[0]).el.shadowRoot.querySelectorAll('option')].map((o) => [o.textContent, o.children.length])"
    )
    for select in ("target", "first", "second"):
        assert page.script(options, select)[-len(NAMES) :] == [[name, 0] for name in NAMES]
    assert_harmless(page)


def test_names_of_columns_and_files_are_text(page: Any, tmp_path: Path):
    path = tmp_path / f"{IMAGE}$$x$$.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*NAMES, "<b>words</b>"])
        rows.writerows([k, k * k % 7, k % 3, k * 5 % 4, IMAGE] for k in range(12))
    for old in page.downloads.iterdir():
        old.unlink()
    page.open(link(replace(SMALL, tuned=False, width=16)))
    page.inside("csv", "input").send_keys(str(path))
    page.until(lambda: page.number("rows") == "12")
    assert f"{path.name}: 12 rows" in page.message()
    assert "left out: <b>words</b>" in page.message()
    assert_shown(page, CLOSING, (SCRIPT,))
    page.script("M('second').value = arguments[0]", IMAGE)
    page.until(lambda: page.script("return V('data_map') != null"))
    assert_shown(page, CLOSING, (SCRIPT, IMAGE))
    page.script("M('target').value = arguments[0]", IMAGE)
    page.until(lambda: f"got ({IMAGE!r}, {SCRIPT!r}, {IMAGE!r})" in page.message())
    assert_harmless(page)
    for target, inputs in ((SCRIPT, (IMAGE, TEX)), (TEX, (CLOSING, SCRIPT)), (IMAGE, (TEX, CLOSING))):
        state = replace(state_of(page), target=target, inputs=inputs)
        page.open(link(state))
        page.until(lambda: page.script("return V('data_map') != null"))
        assert_shown(page, target, inputs)
    for kind in ("py", "json", "svg"):
        page.click(f"export_{kind}")
        page.until(lambda kind=kind: (page.downloads / f"ntkgp-explorer.{kind}").exists())
    page.until(lambda: not list(page.downloads.glob("*.crdownload")))
    for kind in ("py", "svg"):
        assert "hacked" not in (page.downloads / f"ntkgp-explorer.{kind}").read_text()
    page.open()
    page.inside("restore", "input").send_keys(str(page.downloads / "ntkgp-explorer.json"))
    page.until(lambda: page.number("rows") == "12")
    assert_shown(page, IMAGE, (TEX, CLOSING))


def state_of(page: Any) -> State:
    """The state in the link of the page, once it has a table."""
    page.until(lambda: State.from_link(page.script("return M('link').value").split("state=")[1]).table)
    return State.from_link(page.script("return M('link').value").split("state=")[1])


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_link_is_answered_in_words(page: Any, name: str):
    record = json.dumps({"ntkgp-explorer": 1, name: 1}).encode()
    page.open("?state=" + base64.urlsafe_b64encode(record).decode())
    assert f"has no field {name!r}" in page.message()
    assert_harmless(page)


def test_a_hostile_query_is_answered_in_words(page: Any):
    page.open("?state=%3C/script%3E%3Cscript%3Ewindow.hacked=1%3C/script%3E&%3Cimg%20src=x%20onerror=window.hacked=1%3E=1")
    assert "no saved state" in page.message()
    assert_harmless(page)
