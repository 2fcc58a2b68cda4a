"""One page: its state and the callbacks of its widgets. Pages share nothing with each other."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bokeh.document import Document
from bokeh.events import DocumentReady, Pan
from bokeh.models import CustomJS

from ntkgp.apps.explorer.model import csv_table, export, your_data
from ntkgp.apps.explorer.model.compute import Answer, Memory, answer
from ntkgp.apps.explorer.model.state import State, StateError, rounded, start
from ntkgp.apps.explorer.model.your_data import DataModel
from ntkgp.apps.explorer.page import texts
from ntkgp.apps.explorer.page.colours import DARK, LIGHT
from ntkgp.apps.explorer.page.controls import Controls
from ntkgp.apps.explorer.page.data_view import DataPanel
from ntkgp.apps.explorer.page.layout import lay_out
from ntkgp.apps.explorer.page.live_training import LiveTraining, Reactions
from ntkgp.apps.explorer.page.share import MAX_LINK_LENGTH, SharePanel
from ntkgp.apps.explorer.page.views import Playground

REFRESH_DELAY_MS = 8  # changes within this time are answered together: a moving slider sends many
PANELS_DELAY_MS = 120  # the smaller panels are drawn this much later than the main plot
LINK_DELAY_MS = 800  # link and script are updated after this time without a change
# The drawing tool does not report a point while it is dragged; this code sends its position, so that the plot follows.
FOLLOW = "if (points.selected.indices.length) points.setv({ data: points.data }, { check_eq: false })"
TYPES = {"json": "application/json", "py": "text/x-python", "png": "image/png", "svg": "image/svg+xml"}
# Fields of the state that do not affect a training.
DISPLAY_FIELDS = {"shown", "probe", "samples", "problem", "table", "target", "inputs", "tuned"}
log = logging.getLogger(__name__)


class Page:
    """A page in a browser tab.

    Args:
        doc: the Bokeh document of the page.
        link: text of a shared state from the URL, if any.
        address: address of the server, for the link of the page.
    """

    def __init__(self, doc: Document, link: str | None = None, address: str = ""):
        self.doc, self.address, self.memory = doc, address, Memory()
        self.state, self.errors, self.notes = start(), list[str](), tuple[str, ...]()
        if link:
            try:
                self.state = State.from_link(link)
            except StateError as error:
                self.errors.append(str(error))
        self.answer: Answer = answer(self.state, self.memory)
        self.model: DataModel | None = None
        self.updates, self.settling = 0, None
        self.pending = self.new_frame = self.later = self.writing = False
        self.views, self.controls, self.table, self.share = Playground(), Controls(), DataPanel(), SharePanel()
        self.message, self.status, self.legend, progress = map(texts.box, ("message", "status", "legend", "progress"))
        self.live = LiveTraining(
            self.doc,
            self.views,
            self.controls,
            progress,
            Reactions(guarded=lambda action: self._guarded(action, by_hand=False), say=self._say, changed=self._show_legend),
        )
        self._listen()
        lay_out(
            self.doc,
            self.views,
            self.controls,
            self.table,
            self.share,
            self.live.column,
            (self.message, self.status, self.legend),
        )
        self._show(new_frame=True)
        if self.state.table is not None:
            self._guarded(lambda: self._fit_table(self.state))()
        self._settle()

    def _listen(self) -> None:
        for control in self.controls.all:
            self._on(control.widget, control.prop, lambda field=control.field: self._read(field))
        c, t = self.controls, self.table
        self._on(self.views.points, "data", self._read_points)
        for button, action in ((c.add, self._add), (c.delete, self._delete), (c.clear, self._clear), (c.train, self._train),
                               (c.again, self.live.forget)):  # fmt: skip
            button.on_click(self._guarded(action))
        self._on(t.file.widget, "tags", self._load_table)
        for widget in (t.target, t.first, t.second):
            self._on(widget, "value", self._choose_columns)
        self._on(t.tuned, "active", self._choose_columns)
        self._on(t.at, "value", self._move_slice)
        self._on(self.share.file.widget, "tags", self._restore)
        for kind, button in self.share.buttons.items():
            button.on_click(self._guarded(lambda kind=kind: self._export(kind)))
        self._on(self.share.dark, "active", self._restyle)
        self.views.main.js_on_event(Pan, CustomJS(args={"points": self.views.points}, code=FOLLOW))
        self.doc.js_on_event(DocumentReady, self.share.ready, t.file.ready, self.share.file.ready)
        self.doc.on_session_destroyed(lambda _context: self.close())

    def _on(self, model: Any, prop: str, action: Callable[[], None]) -> None:
        model.on_change(prop, lambda _attr, _old, _new: None if self.writing else self._guarded(action)())

    def _guarded(self, action: Callable[[], None], by_hand: bool = True) -> Callable[..., None]:
        """Wrap an action so that an error is shown in the page and the page continues to work.

        Errors and notes stay until the next action of the user (`by_hand`); automatic actions do not remove them.
        """

        def guarded(*_event: Any) -> None:
            before = self.errors, self.notes
            if by_hand:
                self.errors, self.notes = [], ()
            try:
                action()
            except ValueError as error:  # errors of the library, the state and the table have readable messages
                self.errors = [str(error)]
            except Exception as error:
                log.exception("an action of the page failed")
                self.errors = [f"{type(error).__name__}: {error}. The page still works; please report what you did."]
            if self.errors != before[0]:
                self._write()
            if (self.errors, self.notes) != before:
                self._say()

        return guarded

    # Actions of the playground.

    def _read(self, field: str) -> None:
        if field == "problem":
            fresh = start(str(self.controls["problem"].value), self.state.seed)
            new = replace(self.state, points=fresh.points, noise_var=fresh.noise_var, problem=fresh.problem)
            self._change(new, new_frame=True)
        else:
            self._change(self.controls.read(self.state, field))

    def _read_points(self) -> None:
        data = self.views.points.data
        self._change(replace(self.state, points=rounded(data["x"], data["y"])))

    def _add(self) -> None:
        x, y = self.controls.x.value, self.controls.y.value
        if x is None or y is None:
            raise StateError("give the new point an x and a y, then press Add point")
        self._change(self.state.with_point(float(x), float(y)))

    def _delete(self) -> None:
        chosen = self.controls.chosen_point  # by value: the list is updated after the plot, so its index may be old
        if chosen in self.state.points:
            self._change(self.state.without_point(self.state.points.index(chosen)))

    def _clear(self) -> None:
        self._change(replace(self.state, points=()))

    def _change(self, state: State, new_frame: bool = False) -> None:
        """Set a new state and schedule a refresh, which also covers changes that follow immediately."""
        changed = {name for name in vars(state) if getattr(state, name) != getattr(self.state, name)}
        self.state = state
        if self.live.run is not None and changed - DISPLAY_FIELDS:
            self.live.forget()
        self.new_frame |= new_frame
        if not self.pending:
            self.pending = True
            self.doc.add_timeout_callback(self._guarded(self._refresh, by_hand=False), REFRESH_DELAY_MS)

    def _refresh(self) -> None:
        new_frame, self.new_frame, self.pending = self.new_frame, False, False
        self.answer = answer(self.state, self.memory)
        if self.live.run is not None:
            self.live.run.ask(self.state, self.answer)
        self._show(new_frame, panels=False)
        if not self.later:
            self.later = True
            self.doc.add_timeout_callback(self._guarded(self._show_panels, by_hand=False), PANELS_DELAY_MS)
        if self.settling is not None:
            self.doc.remove_timeout_callback(self.settling)
        self.settling = self.doc.add_timeout_callback(self._guarded(self._settle, by_hand=False), LINK_DELAY_MS)

    def _show_panels(self) -> None:
        self.later = False
        self.views.show_panels(self.answer, self.state)
        self.controls.list_points(self.state)

    def _show(self, new_frame: bool = False, panels: bool = True) -> None:
        self.updates += 1
        self.views.show(self.answer, self.state)
        if panels:
            self._show_panels()
        if new_frame:
            self.views.frame(self.answer, self.state)
        self._write()
        self.status.text = texts.numbers(self.answer, self.state, self.updates)
        self._show_legend()
        self._say()

    def _write(self) -> None:
        """Set all widgets and points to the state."""
        self.writing = True
        try:
            self.controls.write(self.state)
            self.table.write(self.state)
            self.views.show_points(self.state)
        finally:
            self.writing = False

    def _say(self, *notes: str) -> None:
        """Show the errors and notes; new notes replace the old ones."""
        self.notes = notes or self.notes
        self.message.text = texts.message(self.errors, (*self.answer.notes, *self.notes))

    def close(self) -> None:
        """End the training when the tab is closed."""
        self.live.close()

    def _train(self) -> None:
        """Start, stop or resume training."""
        if self.live.run is None or self.live.run.finished:
            self.answer = answer(self.state, self.memory)
        self.live.toggle(self.state, self.answer)

    def _show_legend(self) -> None:
        self.legend.text = texts.legend(self.views.palette, self.state, self.live.trained is not None)

    # Actions of the user's table.

    def _load_table(self) -> None:
        content, name = self.table.file.read()
        table, notes = csv_table.parse(content, name)
        self._fit_table(your_data.choose(table, self.state))
        self._write()
        self._settle(f"{name}: {table.rows} rows, {len(table.names)} columns of numbers", *notes)

    def _choose_columns(self) -> None:
        if self.state.table is None:
            return
        target, inputs = self.table.chosen()
        self._fit_table(replace(self.state, target=target, inputs=inputs, tuned=bool(self.table.tuned.active)))
        self._settle()

    def _fit_table(self, state: State) -> None:
        """Fit the table of a state and show it; if it cannot be fitted, the page keeps its state and table."""
        self.model = your_data.fit(state)
        self.state = state
        self.table.show(self.model, state)

    def _move_slice(self) -> None:
        if self.model is not None:
            self.table.show_slice(self.model, self.state)

    # Links and files.

    def _settle(self, *notes: str) -> None:
        """Update the link and the script after the state has changed, and show the notes."""
        self.settling = None
        link = self.state.to_link()
        if len(link) > MAX_LINK_LENGTH and self.state.table is not None:
            link = replace(self.state, table=None, target="", inputs=()).to_link()
            notes += (
                "The link leaves your table out because it is too long for a link: press Save state to get a file with it.",
            )
        if notes:
            self._say(*notes)
        self.share.link.value = f"{self.address}?state={link}"
        self.share.script.value = export.script(self.state) if self.state.points else ""

    def _export(self, kind: str) -> None:
        makers: dict[str, Callable[[], bytes]] = {
            "json": lambda: self.state.to_json().encode(),
            "py": lambda: export.script(self.state).encode(),
            "png": lambda: export.picture(self.state, self.answer, "png"),
            "svg": lambda: export.picture(self.state, self.answer, "svg"),
        }
        self.share.send(f"ntkgp-explorer.{kind}", TYPES[kind], makers[kind]())

    def _restore(self) -> None:
        content, _ = self.share.file.read()
        self.state = State.from_json(content)
        self.live.forget()
        self.model = None
        self.answer = answer(self.state, self.memory)
        self._show(new_frame=True)
        if self.state.table is not None:
            self._fit_table(self.state)
        self._settle()

    def _restyle(self) -> None:
        palette = DARK if self.share.dark.active else LIGHT
        self.views.restyle(palette)
        self.table.restyle(palette)
        self._show_legend()
