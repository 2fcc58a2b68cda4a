"""Exports, tables, bad input and several tabs in a real browser."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("bokeh", reason="Bokeh is not installed")
pytest.importorskip("selenium", reason="Selenium is not installed")

import numpy as np
import torch

from ntkgp.apps.explorer.model import your_data
from ntkgp.apps.explorer.model.compute import GRID
from ntkgp.apps.explorer.model.csv_table import parse
from tests.apps.explorer.browser.pages import SMALL, link
from tests.support.processes import cpu_seconds


def test_what_is_exported_restores_the_page(page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for old in page.downloads.iterdir():
        old.unlink()
    state = replace(SMALL, rank=3)
    page.open(link(state))
    band, edges = page.data("band"), page.data("edges")
    for kind in ("png", "svg", "py", "json"):
        page.click(f"export_{kind}")
        page.until(lambda kind=kind: (page.downloads / f"ntkgp-explorer.{kind}").exists())
    time.sleep(0.3)
    files = {kind: (page.downloads / f"ntkgp-explorer.{kind}").read_bytes() for kind in ("png", "svg", "py", "json")}
    assert files["png"].startswith(b"\x89PNG")
    assert b"<svg" in files["svg"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    session: dict[str, Any] = {}
    exec(compile(files["py"], "ntkgp.py", "exec"), session)
    assert (tmp_path / "posterior.png").exists()
    p = session["p"]
    assert torch.tensor(band["mean"]).double() == pytest.approx(p.mean, rel=1e-5, abs=1e-5)
    assert torch.tensor(edges["upper"][-GRID:]) == pytest.approx(p.mean + 2 * p.upper.sqrt(), rel=1e-5, abs=1e-5)
    assert json.loads(files["json"])["rank"] == 3
    shown = {key: page.number(key) for key in ("points", "noise", "rank", "mean", "exact", "upper", "paper")}
    shared = page.script("return M('link').value")
    page.until(lambda: page.driver.current_url == shared)  # the address follows, so that a reload keeps everything
    page.driver.refresh()
    page.adopt()
    assert {key: page.number(key) for key in shown} == shown
    page.open()
    assert page.number("mean") != shown["mean"]
    page.inside("restore", "input").send_keys(str(page.downloads / "ntkgp-explorer.json"))
    page.until(lambda: page.number("points") == "3")
    assert {key: page.number(key) for key in shown} == shown


def test_bad_input_is_answered_in_words(page: Any, tmp_path: Path):
    page.open("?state=nonsense!")
    assert "no saved state" in page.message()
    assert page.value("points") == 20
    page.open(link(replace(SMALL, points=())))
    assert "this is the prior" in page.message()
    assert page.value("mean") == 0
    page.click("train")
    page.until(lambda: "add a point first" in page.message())
    page.click("export_py")
    page.until(lambda: "nothing to export" in page.message())
    page.click("add")
    page.until(lambda: page.value("points") == 1)
    assert "add a point first" not in page.message()
    page.click("add")
    page.until(lambda: page.value("points") == 2)
    assert "same x" in page.message()
    assert page.value("exact") > 0
    page.script("M('points').data = {x: [0, 99], y: [0, 0]}")
    page.until(lambda: "x must be between" in page.message())
    page.until(lambda: page.data("points")["x"] == [0, 0])  # put back
    page.script("M('seed').value = null")
    page.until(lambda: "seed must be a whole number" in page.message())
    bad = {
        "a,b\n1,2\n3": "at least 2",
        "a,b\n1,2\n3,4,5,6": "cannot be read",
        "": "is empty",
        "a\nb\n": "of numbers",
        "\0\1": "not a text",
    }
    for content, words in bad.items():
        path = tmp_path / f"bad{len(content)}.csv"
        path.write_text(content)
        page.inside("csv", "input").send_keys(str(path))
        page.until(lambda path=path, words=words: path.name in page.message() and words in page.message())
    page.set("noise_var", -1.5)  # after all that, alive
    assert page.value("noise") == pytest.approx(10**-1.5, rel=1e-2)


def test_tabs_do_not_disturb_each_other_and_a_closed_one_stops_training(page: Any, server: tuple[str, int]):
    page.open(link(SMALL))
    first, shown = page.driver.current_window_handle, page.number("mean")
    page.driver.switch_to.new_window("tab")
    try:
        page.open(link(replace(SMALL, width=512, rank=3, trainer="adam", signal=1.0)))
        page.set("noise_var", 0.0)
        page.click("train")
        page.until(lambda: page.number("step") and page.value("step") >= 3)
        busy = share_of_a_core(server[1])
    finally:
        page.driver.close()
        page.driver.switch_to.window(first)
    assert page.number("mean") == shown
    assert page.number("stage") is None
    end = time.monotonic() + 60  # a closed tab may come back for a moment, then its session ends
    while (idle := share_of_a_core(server[1])) > 0.2 * busy:
        assert time.monotonic() < end, f"still {idle:.2f} s of work a second, {busy:.2f} while training"
    page.set("rank", 1)  # and the other page lives on
    assert page.value("rank") == 1


def share_of_a_core(pid: int, over: float = 1.0) -> float:
    """Processor time a process takes, per second."""
    before = cpu_seconds(pid)
    time.sleep(over)
    return (cpu_seconds(pid) - before) / over


def test_the_link_has_the_host_of_the_address_bar(page: Any):
    page.open(page.address.replace("127.0.0.1", "localhost"))
    assert page.script("return M('link').value").startswith(page.script("return location.origin") + "/?state=")
    page.set("rank", 3)  # the websocket is open
    assert page.value("rank") == 3


def test_a_table_of_one_s_own(page: Any, tmp_path: Path):
    rng = np.random.default_rng(0)
    size, age = rng.uniform(50, 150, 40), rng.uniform(0, 30, 40)
    size, age = size[(size < 80) | (size > 110)], age[(size < 80) | (size > 110)]
    price = 3 * size - age + rng.normal(size=len(size))
    rows = "\n".join(f"{a},{b},town,{c}" for a, b, c in zip(size, age, price, strict=True))
    content = f"size,<b>age</b>,town,price\n{rows}\n,,,\n"
    (tmp_path / "houses.csv").write_text(content)
    page.open(link(replace(SMALL, tuned=False)))
    page.inside("csv", "input").send_keys(str(tmp_path / "houses.csv"))
    page.until(lambda: page.number("rows") == str(len(size)))
    assert "town" in page.message()  # what was left out is said
    table, _ = parse(content.encode())
    chosen = replace(your_data.choose(table, replace(SMALL, tuned=False)))
    where, std = your_data.next_point(your_data.fit(chosen))
    assert page.number("next") == f"size = {float(where[0]):.5g}"
    assert page.value("next_std") == pytest.approx(std, rel=1e-4)
    assert 80 < float(where[0]) < 110  # in the gap
    page.script("M('second').value = '<b>age</b>'")  # a second input: a map; its name is a text, not a tag
    page.until(lambda: "age" in page.number("next"))
    both = replace(chosen, inputs=("size", "<b>age</b>"))
    where, std = your_data.next_point(your_data.fit(both))
    assert page.number("next") == f"size = {float(where[0]):.5g}, <b>age</b> = {float(where[1]):.5g}"
    assert page.value("next_std") == pytest.approx(std, rel=1e-4)
    page.until(lambda: page.script("return V('data_map') != null"))
    page.script("M('slice').value = 0.9")
    page.until(lambda: page.script("return M('data_slice').title.text.text").count("="))
    page.script("M('first').value = 'price'")
    page.until(lambda: "choose a target" in page.message())
    page.until(lambda: page.script("return M('first').value") == "size")  # put back
