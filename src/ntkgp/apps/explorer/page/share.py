"""The panel for exports: a link, a file, a picture, ten lines of Python; with the few lines of code the browser runs."""

import base64
import json
from typing import Any

from bokeh.models import Button, CustomJS, TextAreaInput, TextInput, Toggle

from ntkgp.apps.explorer.page.controls import SHEET
from ntkgp.apps.explorer.page.upload import FileField

MAX_LINK_LENGTH = 8000  # characters; longer addresses often break when they are sent
MAX_STATE_BYTES = 40_000_000  # of a saved state
DOWNLOAD = """
const { name, type, data } = JSON.parse(cb_obj.value)
const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0))
const a = document.createElement("a")
a.href = URL.createObjectURL(new Blob([bytes], { type }))
a.download = name
a.click()
setTimeout(() => URL.revokeObjectURL(a.href), 10000)
"""
ADDRESS = 'history.replaceState(null, "", "?" + cb_obj.value.split("?")[1])'
THEME = "document.documentElement.dataset.theme = cb_obj.active ? 'dark' : 'light'"
# Follow the colour scheme of the browser, and name the handles of the sliders for screen readers.
READY = """
const query = window.matchMedia("(prefers-color-scheme: dark)")
dark.active = query.matches
query.addEventListener("change", () => { dark.active = query.matches })
const label = (root) => {
  for (const el of root.querySelectorAll("*")) {
    if (el.shadowRoot) label(el.shadowRoot)
    if (el.classList.contains("noUi-handle")) {
      const title = el.getRootNode().querySelector(".bk-slider-title")
      if (title) el.setAttribute("aria-label", title.textContent.split(":")[0])
    }
  }
}
setTimeout(() => label(document), 0)
"""


class SharePanel:
    """Widgets for exports; the page fills them."""

    def __init__(self):
        wide: dict[str, Any] = {"sizing_mode": "stretch_width", "stylesheets": [SHEET], "margin": (4, 6, 4, 6), "min_width": 90}
        self.link = TextInput(title="Link to this page", name="link", **wide)
        self.link.js_on_change("value", CustomJS(code=ADDRESS))
        self.buttons = {
            name: Button(label=label, name=f"export_{name}", **wide)
            for name, label in {"json": "Save state", "py": "Python", "png": "PNG", "svg": "SVG"}.items()
        }
        self.file = FileField(
            "restore", "Open a saved state", ".json,application/json", MAX_STATE_BYTES, "this page saves smaller states"
        )
        self.script = TextAreaInput(title="Ten lines of Python", name="script", rows=11, max_length=None, value="", **wide)
        self.download = TextInput(name="download", visible=False)
        self.download.js_on_change("value", CustomJS(code=DOWNLOAD))
        self.dark = Toggle(label="Dark", name="dark", stylesheets=[SHEET], width=80)
        self.dark.js_on_change("active", CustomJS(code=THEME))
        self.ready = CustomJS(args={"dark": self.dark}, code=READY)
        self._sent = 0

    def send(self, name: str, kind: str, content: bytes) -> None:
        """Make the browser save a file."""
        self._sent += 1  # so that the same file can be downloaded twice
        data = base64.b64encode(content).decode()
        self.download.value = json.dumps({"name": name, "type": kind, "data": data, "count": self._sent})
