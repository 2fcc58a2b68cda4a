"""The page without a mouse, on a phone, in light and dark."""

import time
from typing import Any

import pytest

pytest.importorskip("bokeh", reason="Bokeh is not installed")
pytest.importorskip("selenium", reason="Selenium is not installed")

from selenium.webdriver.common.by import By

from tests.apps.explorer.browser.pages import SMALL, link


def test_everything_can_be_reached_and_read_without_a_mouse(page: Any):
    page.open(link(SMALL))
    time.sleep(0.3)
    nameless = page.script("""
        const bad = []
        const look = (root) => {
          for (const el of root.querySelectorAll("*")) {
            if (el.shadowRoot) look(el.shadowRoot)
            const field = el.matches("input, select, textarea, button, [role=slider]")
            if (!field || el.offsetParent === null) continue
            const label = el.getAttribute("aria-label") || el.textContent.trim() || el.title ||
              (el.labels && [...el.labels].map((l) => l.textContent).join("")) ||
              el.getRootNode().querySelector("label")?.textContent
            if (!label) bad.push(el.outerHTML)
            if (el.tabIndex < 0) bad.push("not by keyboard: " + el.outerHTML)
          }
        }
        look(document)
        return bad""")
    assert nameless == []
    assert page.inside("rank", ".noUi-handle").get_attribute("aria-label") == "Predictors K"


def test_a_phone_shows_everything_without_scrolling_sideways(page: Any):
    metrics = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        page.open(link(SMALL))
        assert page.script("return document.documentElement.scrollWidth") <= 390
        assert page.script("return V('main').el.getBoundingClientRect().width") > 330
        handle = page.inside("noise_var", ".noUi-handle")
        page.script("arguments[0].scrollIntoView({block: 'center'})", handle)
        top = page.script("return document.querySelector('.plot').getBoundingClientRect().top")
        assert 0 <= top < 100  # the plot stays in sight while its sliders move
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_light_and_dark(page: Any):
    media = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
    try:
        page.open(link(SMALL))
        page.until(lambda: page.script("return document.documentElement.dataset.theme") == "dark")
        page.until(lambda: page.script("return M('main').below[0].axis_label_text_color") == "#e8e8e8")
        body = page.driver.find_element(By.TAG_NAME, "body")
        assert body.value_of_css_property("background-color") == "rgba(22, 25, 29, 1)"
        page.click("dark")
        page.until(lambda: body.value_of_css_property("background-color") == "rgba(255, 255, 255, 1)")
        page.until(lambda: page.script("return M('main').below[0].axis_label_text_color") == "#222222")
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
