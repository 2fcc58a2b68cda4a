"""Files from the browser, which sends each in one message, and of a file above the limit only its name and size."""

import base64
from typing import Any

from bokeh.models import CustomJS, FileInput

from ntkgp.apps.explorer.model.state import StateError
from ntkgp.apps.explorer.page.controls import SHEET

# Bokeh itself would read a file of any size, and a message above the limit of the server closes the connection. It would also
# stay silent about a file that is the same as the last one.
SEND = """
const { shadow_el } = Bokeh.index.find_one(field)
shadow_el.addEventListener("click", (event) => { event.target.value = "" }, true)  // so that one can choose the same file again
shadow_el.addEventListener("change", (event) => {
  event.stopImmediatePropagation()
  const [file] = event.target.files
  if (!file) return
  const send = (content) => { field.tags = [file.name, file.size, content, Date.now()] }
  if (file.size > limit) return send(null)
  const reader = new FileReader()
  reader.onloadend = () => send(reader.result === null ? null : reader.result.split(",")[1] ?? "")
  reader.readAsDataURL(file)
}, true)
"""


class FileField:
    """A field for a file of at most `limit` bytes; its tags hold the last message. `advice` helps a user with a larger file."""

    def __init__(self, name: str, title: str, accept: str, limit: int, advice: str):
        look: dict[str, Any] = {"sizing_mode": "stretch_width", "stylesheets": [SHEET], "margin": (4, 6, 4, 6), "min_width": 90}
        self.widget = FileInput(name=name, title=f"{title}, at most {limit / 1e6:.0f} MB", accept=accept, **look)
        self.ready = CustomJS(args={"field": self.widget, "limit": limit}, code=SEND)
        self.limit, self.advice = limit, advice

    def read(self) -> tuple[bytes, str]:
        """Content and name of the last file; the name is used only in messages."""
        try:
            name, size, encoded, _ = self.widget.tags
            content = None if encoded is None else base64.b64decode(encoded, validate=True)
            size = max(int(size), len(content or b""))
        except (TypeError, ValueError, OverflowError) as error:
            raise StateError(f"the upload is damaged ({error}); upload the file again") from error
        if size > self.limit:
            raise StateError(f"{name} has {size / 1e6:.1f} MB; the page takes at most {self.limit / 1e6:.0f} MB: {self.advice}")
        if content is None:
            raise StateError(f"the browser could not read {name}; choose the file again")
        return content, str(name)
