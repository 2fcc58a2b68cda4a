"""The panel for leaving with something: a link, a file, a picture, ten lines of Python. The browser's part is a few lines."""

import base64
import binascii
import json
from typing import Any

from bokeh.models import Button, CustomJS, FileInput, TextAreaInput, TextInput, Toggle

from ntkgp.apps.explorer.model.state import StateError
from ntkgp.apps.explorer.page.controls import SHEET

LONGEST_LINK = 8000  # letters; longer addresses do not survive being sent around
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
# What the browser prefers; and names for the handles of sliders, which have none for those who cannot see.
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
    """Widgets; the page fills them."""

    def __init__(self):
        wide: dict[str, Any] = {"sizing_mode": "stretch_width", "stylesheets": [SHEET], "margin": (4, 6, 4, 6), "min_width": 90}
        self.link = TextInput(title="Link that restores this page", name="link", **wide)
        self.link.js_on_change("value", CustomJS(code=ADDRESS))
        self.buttons = {
            name: Button(label=label, name=f"export_{name}", **wide)
            for name, label in {"json": "Save state", "py": "Python", "png": "PNG", "svg": "SVG"}.items()
        }
        self.file = FileInput(accept=".json,application/json", title="Open a saved state", name="restore", **wide)
        self.script = TextAreaInput(title="Ten lines of Python", name="script", rows=11, max_length=None, value="", **wide)
        self.download = TextInput(name="download", visible=False)
        self.download.js_on_change("value", CustomJS(code=DOWNLOAD))
        self.dark = Toggle(label="Dark", name="dark", stylesheets=[SHEET], width=80)
        self.dark.js_on_change("active", CustomJS(code=THEME))
        self.ready = CustomJS(args={"dark": self.dark}, code=READY)
        self._sent = 0

    def send(self, name: str, kind: str, content: bytes) -> None:
        """Let the browser save a file."""
        self._sent += 1  # two equal files are two downloads
        data = base64.b64encode(content).decode()
        self.download.value = json.dumps({"name": name, "type": kind, "data": data, "count": self._sent})


def uploaded(widget: Any) -> tuple[bytes, str]:
    """What the browser sent, and the name it had there, which is only ever shown."""
    try:
        return base64.b64decode(widget.value, validate=True), str(widget.filename or "the file")
    except (binascii.Error, ValueError) as error:
        raise StateError(f"the upload arrived damaged: {error}") from error
