"""Live training on the page: buttons, progress and curves."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bokeh.document import Document
from bokeh.layouts import column, row
from bokeh.models import Div

from ntkgp.apps.explorer.model.compute import Answer
from ntkgp.apps.explorer.model.state import State
from ntkgp.apps.explorer.model.training import Trained, Training
from ntkgp.apps.explorer.page import texts
from ntkgp.apps.explorer.page.controls import Controls
from ntkgp.apps.explorer.page.views import Playground

SLICE_SECONDS = 0.05  # training time between two updates of the page
PERIOD_MS = 40  # time between the starts of two slices


@dataclass(frozen=True)
class Reactions:
    """Functions of the page that the training calls: catch errors, show a message, redraw the legend."""

    guarded: Callable[[Callable[[], None]], Callable[..., None]]
    say: Callable[..., None]
    changed: Callable[[], None]


class LiveTraining:
    """The training of one page; at most one runs at a time."""

    def __init__(self, doc: Document, views: Playground, controls: Controls, progress: Div, page: Reactions):
        self.doc, self.views, self.controls, self.progress, self.page = doc, views, controls, progress, page
        self.run: Training | None = None
        self.trained: Trained | None = None
        self.ticking: Any = None
        wide: dict[str, Any] = {"sizing_mode": "stretch_width"}
        settings = row(controls["trainer"], controls["signal"], **wide)
        buttons = row(controls.train, controls.again, **wide)
        self.column = column(settings, buttons, progress, **wide, name="training_controls")

    def toggle(self, state: State, answer: Answer) -> None:
        """Start, stop or resume the training."""
        if self.ticking is not None:
            self._stop()
        else:
            if self.run is None or self.run.finished:
                self.forget()
                self.run = Training(state, answer)
            self.ticking = self.doc.add_periodic_callback(self.page.guarded(self._tick), PERIOD_MS)
        self._show()

    def _tick(self) -> None:
        if self.run is None or self.ticking is None:
            return
        try:
            self.run.advance(SLICE_SECONDS)
            self.trained = self.run.look()
        except Exception:
            self.forget()
            raise
        self.views.show_trained(self.trained)
        if self.run.finished:
            self._stop()
        if self.run.note:
            self.page.say(self.run.note)
        self._show()

    def _stop(self) -> None:
        if self.ticking is not None:
            self.doc.remove_periodic_callback(self.ticking)
            self.ticking = None

    def forget(self) -> None:
        """End the training and remove its results from the page."""
        self._stop()
        if self.run is not None:
            self.run.close()
        self.run = self.trained = None
        self.views.show_trained(None)
        self._show()

    def _show(self) -> None:
        running = self.ticking is not None
        resumable = self.run is not None and not self.run.finished
        self.controls.train.label = "Stop" if running else "Resume" if resumable else "Train"
        self.controls.again.disabled = self.run is None
        self.progress.text = texts.training(self.run, self.trained, running)
        children = [child for child in self.column.children if child is not self.views.curve]
        self.column.children = children + ([self.views.curve] if self.trained is not None else [])
        self.page.changed()

    def close(self) -> None:
        """End the training when the tab is closed; the session removes its callbacks."""
        self.ticking = None
        if self.run is not None:
            self.run.close()
            self.run = None
