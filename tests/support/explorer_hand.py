"""A page of the explorer without a browser."""

import base64
import itertools
from typing import Any

from bokeh.document import Document

from ntkgp.apps.explorer.model.state import State
from ntkgp.apps.explorer.page.app import Page


class Hand:
    """A page without a browser: widgets are set and due callbacks called by hand."""

    stamps = itertools.count()

    def __init__(self, state: State):
        self.doc = Document()
        self.page = Page(self.doc, state.to_link(), "http://127.0.0.1:1/")
        self.settle()

    def settle(self, ticks: int = 30) -> None:
        for _ in range(ticks):
            due = list(self.doc.session_callbacks)
            if not due:
                return
            for callback in due:
                if callback in self.doc.session_callbacks:
                    if type(callback).__name__ == "TimeoutCallback":
                        self.doc.callbacks.remove_session_callback(callback)
                    callback.callback()

    def press(self, button: Any) -> None:
        for action in button._event_callbacks["button_click"]:
            action()
        self.settle(2)

    def upload(self, field: Any, content: bytes, name: str = "my.csv") -> None:
        """What the browser sends for a file."""
        field.widget.tags = [name, len(content), base64.b64encode(content).decode(), next(self.stamps)]
