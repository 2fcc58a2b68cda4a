"""A real browser on a real server: Debian's chromium driven by Selenium, and what a person sees in the page."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
MISSING = None if CHROMIUM and DRIVER else "no chromium and chromedriver here (apt-get install chromium chromium-driver)"

# Bokeh's widgets live in shadow trees: `deep` looks through them, `M` finds a model by its name and `V` its view.
HELPERS = """
window.deep = (selector, root = document) => {
  const found = root.querySelector(selector)
  if (found) return found
  for (const el of root.querySelectorAll("*")) {
    const inner = el.shadowRoot ? window.deep(selector, el.shadowRoot) : null
    if (inner) return inner
  }
  return null
}
window.M = (name) => Bokeh.documents[0].get_model_by_name(name)
window.V = (name) => Bokeh.index.find_one(window.M(name))
"""
# From setting a value, in ms: to the document having the new numbers, to the plot having painted the new curves, and to the
# frame after both.
MEASURE = """
const [name, prop, values, done] = arguments
const status = M("status"), band = M("band"), view = V("main"), paint = view._actual_paint
const once = (value) => new Promise((resolve) => {
  const begin = performance.now(), since = () => performance.now() - begin
  let fresh = false, updated = null, painted = null
  const finish = () => {
    if (updated === null || painted === null) return
    status.properties.text.change.disconnect(numbers)
    delete view._actual_paint
    requestAnimationFrame(() => resolve([updated, Math.max(updated, painted), since()]))
  }
  const curves = () => { fresh = true; band.properties.data.change.disconnect(curves) }
  const numbers = () => { updated ??= since(); finish() }
  band.properties.data.change.connect(curves)
  status.properties.text.change.connect(numbers)
  view._actual_paint = function (...rest) {
    const result = paint.apply(this, rest)
    if (fresh) { painted ??= since(); finish() }
    return result
  }
  M(name)[prop] = value
})
const all = async () => {
  const times = []
  for (const value of values) {
    times.push(await once(value))
    await new Promise((resolve) => setTimeout(resolve, 60))
  }
  return times
}
all().then(done)
"""


class Browser:
    """One browser window with some ways to look and to touch."""

    def __init__(self, address: str, downloads: Path):
        options = webdriver.ChromeOptions()
        options.binary_location = str(CHROMIUM)
        for argument in (
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--window-size=1400,1100",
            "--hide-scrollbars",
        ):
            options.add_argument(argument)
        # Nobody is here to confirm that several files may come, or that a script may.
        once = {"profile.default_content_setting_values.automatic_downloads": 1, "safebrowsing.enabled": True}
        options.add_experimental_option("prefs", {"download.default_directory": str(downloads), **once})
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(service=Service(str(DRIVER)), options=options)
        self.driver.set_script_timeout(60)
        self.address, self.downloads = address, downloads

    def open(self, query: str = "") -> None:
        """The page, and wait until it is drawn."""
        self.driver.get(query if query.startswith("http") else self.address + query)
        self.adopt()

    def adopt(self) -> None:
        """Wait for the page of the current tab."""
        self.driver.execute_script(HELPERS)
        self.until(lambda: self.script("return window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle"))
        self.until(lambda: self.number("points"))

    def script(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)

    def until(self, condition: Callable[[], Any], seconds: float = 60) -> Any:
        """Wait for something, and give it back."""
        end = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < end, f"waited {seconds} s in vain; the page says {self.message()!r}"
            time.sleep(0.05)
        return value

    def number(self, key: str) -> str | None:
        """What the page shows under this name."""
        return self.script("return deep(`[data-number='${arguments[0]}']`)?.textContent", key)

    def value(self, key: str) -> float:
        """The number in it."""
        text = self.number(key)
        assert text, f"the page does not show {key}"
        return float(text.split()[0].rstrip("%")) / (100 if text.endswith("%") else 1)

    def message(self) -> str:
        """The words at the top of the page."""
        look = "return [...(V('message')?.el.shadowRoot.querySelectorAll('p') ?? [])].map((p) => p.textContent).join(' ')"
        return self.script(look)

    def inside(self, name: str, selector: str) -> WebElement:
        """An element of the widget of this name."""
        return self.until(
            lambda: self.script("return V(arguments[0])?.el.shadowRoot.querySelector(arguments[1])", name, selector)
        )

    def click(self, name: str) -> None:
        """Press the button of this name."""
        button = self.inside(name, "button")
        self.script("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()

    def type(self, name: str, text: str) -> None:
        """Write over what stands in a field, and leave it."""
        self.script(
            "arguments[0].scrollIntoView({block: 'center'}); arguments[0].focus(); arguments[0].select()",
            self.inside(name, "input"),
        )
        ActionChains(self.driver).send_keys(text, Keys.TAB).perform()

    def set(self, name: str, value: Any, prop: str = "value") -> None:
        """Set a widget, and wait until the page has answered."""
        before = self.updates()
        self.script("M(arguments[0])[arguments[1]] = arguments[2]", name, prop, value)
        self.until(lambda: self.updates() > before)

    def updates(self) -> int:
        return int(self.script("return deep('[data-update]', V('status').el.shadowRoot).dataset.update"))

    def data(self, model: str) -> dict[str, list[float]]:
        """The columns of a data source."""
        return self.script(
            "return Object.fromEntries(Object.entries(M(arguments[0]).data).map(([k, v]) => [k, Array.from(v)]))", model
        )

    def latency(self, name: str, values: list[Any], prop: str = "value") -> list[tuple[float, float, float]]:
        """Milliseconds from each change to the new numbers, to the new picture, and to the frame after it."""
        return self.driver.execute_async_script(MEASURE, name, prop, values)

    def complaints(self) -> list[str]:
        """Errors in the console since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
