"""The widgets of the playground and the fields of the state that they set."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bokeh.models import Button, CheckboxGroup, CustomJSTickFormatter, Select, Slider, Spinner, Widget

from ntkgp.apps.explorer.model.state import (
    HIGH,
    INFINITE,
    LAYERS,
    LOW,
    NORMALISATIONS,
    PROBLEMS,
    RANGES,
    SIGNALS,
    TRAINERS,
    State,
    check_fields,
)

# Widgets live in shadow trees, which only CSS variables reach; the page sets these variables for the light and dark themes.
# The sheets are texts, because a Bokeh style-sheet model can belong to one page only.
SHEET = """
:host { color: var(--text); font: inherit; }
.bk-input, select.bk-input { background-color: var(--field); color: var(--text); border-color: var(--line); min-height: 36px; }
select.bk-input { background-image: var(--caret) !important; }
.bk-input:focus, .bk-btn:focus, .noUi-handle:focus { outline: 2px solid var(--accent); outline-offset: 1px; }
.bk-btn, .bk-btn-default { background: var(--field); color: var(--text); border-color: var(--line); min-height: 36px; }
.bk-btn:hover { border-color: var(--accent); }
.bk-btn.bk-btn-primary { background: var(--accent); border-color: var(--accent); color: var(--on-accent); }
.bk-btn.bk-btn-default:disabled { background: var(--field); color: var(--soft); opacity: 0.6; }
.bk-btn.bk-btn-default.bk-active, .bk-btn.bk-btn-default:hover { background: var(--field); color: var(--text); }
.bk-btn.bk-active { border-color: var(--accent); }
input[type="file"]::file-selector-button { background: var(--field); color: var(--text); border: 1px solid var(--line); }
.bk-slider-title, label { color: var(--text); font-size: 0.9rem; }
.noUi-target { background: var(--line); border: none; }
.noUi-connect { background: var(--accent) !important; opacity: 0.55; }
.noUi-handle { background: var(--accent); border: 2px solid var(--page); box-shadow: none; }
.noUi-tooltip { background: var(--field); color: var(--text); border-color: var(--line); }
input[type="checkbox"], input[type="radio"] { accent-color: var(--accent); width: 18px; height: 18px; }
"""
POWER_OF_10 = "return String(Number(Math.pow(10, tick).toPrecision(3)))"
POWER_OF_2 = f"return tick > {math.log2(INFINITE)} - 0.5 ? '∞' : String(Math.round(Math.pow(2, tick)))"


@dataclass(frozen=True)
class Control:
    """A widget, the field of the state that it sets, and the conversions between the two."""

    field: str
    widget: Any
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]
    prop: str = "value"


class Controls:
    """All widgets that set a field of the state, and the buttons."""

    def __init__(self):
        self.all = [
            Control("problem", _select("problem", "Start from", {p: p for p in PROBLEMS}), str, str),
            _logarithmic("noise_var", "Noise σ²", 0.05),
            _plain("rank", "Predictors K", 1, int, low=1, high=20),
            _plain("tail", "Tail predictors T", 1, int, high=32),
            _logarithmic("sharpness", "Activation sharpness β", 0.02, low=0.5, high=150),
            _doubling("width", "Width"),
            _plain("depth", "Depth", 1, int),
            Control("normalisation", _select("normalisation", "Inputs", NORMALISATIONS), str, str),
            _spinner("seed", "Seed of network and samples", 1, int),
            _plain("samples", "Sample functions", 1, int),
            _plain("probe", "Ask at x*", 0.1, float),
            Control("trainer", _select("trainer", "Trainer", TRAINERS), str, str),
            _logarithmic("signal", "Signal scale ε", 0.25, low=1e-6, high=10),
            _shown(),
        ]
        self.x = Spinner(title="x", low=LOW, high=HIGH, step=0.1, value=0, name="x", **_wide())
        self.y = Spinner(title="y", low=RANGES["y"][0], high=RANGES["y"][1], step=0.1, value=0, name="y", **_wide())
        self.add = Button(label="Add point", name="add", **_wide())
        self.chosen = Select(title="Point", options=[("", "–")], value="", name="chosen", **_wide())
        self.listed: tuple[tuple[float, float], ...] = ()
        self.delete = Button(label="Delete point", name="delete", **_wide())
        self.clear = Button(label="Delete all", name="clear", **_wide())
        self.train = Button(label="Train", name="train", button_type="primary", **_wide())
        self.again = Button(label="Start over", name="again", disabled=True, **_wide())

    def __getitem__(self, field: str) -> Any:
        return next(control.widget for control in self.all if control.field == field)

    def read(self, state: State, field: str) -> State:
        """The state with the value of this field's widget."""
        control = next(control for control in self.all if control.field == field)
        value = getattr(control.widget, control.prop)
        read = None if value is None else control.read(value)  # the user can clear a field
        check_fields({field: read})
        new = replace(state, **{field: read})
        return replace(new, signal=SIGNALS[new.trainer]) if field == "trainer" else new

    def write(self, state: State) -> None:
        """Set the widgets to the state. Callbacks must be switched off."""
        self["rank"].end = max(len(state.points), 2)
        for control in self.all:
            shown = control.write(getattr(state, control.field))
            if control.field == "rank":
                shown = min(shown, self["rank"].end)
            # Widgets round their values: set only those that differ by more than the rounding.
            there = getattr(control.widget, control.prop)
            if there is None or control.read(there) != getattr(state, control.field):
                setattr(control.widget, control.prop, shown)

    @property
    def chosen_point(self) -> tuple[float, float] | None:
        """The point selected in the list of points; None if the list is empty."""
        return dict(enumerate(self.listed)).get(int(str(self.chosen.value))) if self.chosen.value else None

    def list_points(self, state: State) -> None:
        """Update the list of points. Callbacks must be switched off."""
        self.listed = state.points
        options = [(str(k), f"{k + 1}: x = {x:g}, y = {y:g}") for k, (x, y) in enumerate(state.points)]
        self.chosen.options = options or [("", "–")]  # pyright: ignore[reportAttributeAccessIssue]
        if self.chosen.value not in dict(options):
            self.chosen.value = options[-1][0] if options else ""
        self.delete.disabled = self.clear.disabled = not options

    @property
    def widgets(self) -> list[Widget]:
        """All widgets, including the buttons."""
        loose = [self.x, self.y, self.add, self.chosen, self.delete, self.clear, self.train, self.again]
        return [control.widget for control in self.all] + loose


def _wide() -> dict[str, Any]:
    return {"sizing_mode": "stretch_width", "min_width": 90, "stylesheets": [SHEET], "margin": (4, 6, 4, 6)}


def _select(name: str, title: str, options: dict[str, str]) -> Select:
    return Select(title=title, name=name, options=list(options.items()), value=next(iter(options)), **_wide())


def _plain(
    name: str, title: str, step: float, kind: Callable[[Any], Any], low: float | None = None, high: float | None = None
) -> Control:
    start, end = RANGES[name][0] if low is None else low, RANGES[name][1] if high is None else high
    form = "0" if kind is int else "0.0"
    widget = Slider(title=title, name=name, start=start, end=end, value=start, step=step, format=form, **_wide())
    return Control(name, widget, round if kind is int else (lambda value: round(value, 6)), kind)


def _logarithmic(name: str, title: str, step: float, low: float | None = None, high: float | None = None) -> Control:
    start, end = RANGES[name][0] if low is None else low, RANGES[name][1] if high is None else high
    widget = Slider(
        title=title, name=name, start=math.log10(start), end=math.log10(end), value=math.log10(start), step=step,
        format=CustomJSTickFormatter(code=POWER_OF_10), **_wide(),
    )  # fmt: skip
    return Control(name, widget, lambda value: float(f"{10**value:.3g}"), math.log10)


def _doubling(name: str, title: str) -> Control:
    start, end = (int(math.log2(end)) for end in RANGES[name])
    widget = Slider(
        title=title,
        name=name,
        start=start,
        end=end,
        value=start,
        step=1,
        format=CustomJSTickFormatter(code=POWER_OF_2),
        **_wide(),
    )
    return Control(name, widget, lambda value: 2 ** round(value), math.log2)


def _spinner(name: str, title: str, step: float, kind: Callable[[Any], Any]) -> Control:
    low, high = RANGES[name]
    widget = Spinner(title=title, name=name, low=low, high=high, step=step, value=low, mode="int", **_wide())
    return Control(name, widget, kind, kind)


def _shown() -> Control:
    names = list(LAYERS)
    widget = CheckboxGroup(labels=list(LAYERS.values()), active=[], name="shown", **_wide())
    return Control(
        "shown", widget, lambda active: tuple(names[k] for k in sorted(active)),
        lambda shown: sorted(names.index(layer) for layer in shown), "active",
    )  # fmt: skip
