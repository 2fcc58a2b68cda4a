"""The panel for the user's table: column widgets, a slice or a map, and the best next point."""

from typing import Any

from bokeh.layouts import column
from bokeh.models import (
    BasicTicker,
    CheckboxGroup,
    ColorBar,
    ColumnDataSource,
    LinearColorMapper,
    PlainText,
    Range1d,
    Select,
    Slider,
    Span,
)

from ntkgp.apps.explorer.model.csv_table import MAX_BYTES
from ntkgp.apps.explorer.model.state import State
from ntkgp.apps.explorer.model.your_data import DataModel, next_point, slice_of, uncertainty_map
from ntkgp.apps.explorer.page import texts
from ntkgp.apps.explorer.page.colours import LIGHT, Palette
from ntkgp.apps.explorer.page.controls import SHEET
from ntkgp.apps.explorer.page.upload import FileField
from ntkgp.apps.explorer.page.views import plain_figure, restyle

NONE = ("", "(none)")  # value and label; a column has a name
HINT = "<p>Load a CSV file with a header and columns of numbers to see its posterior over one or two inputs.</p>"


class DataPanel:
    """Widgets and figures of the table; the page decides when they change."""

    def __init__(self):
        wide: dict[str, Any] = {"sizing_mode": "stretch_width", "stylesheets": [SHEET], "margin": (4, 6, 4, 6), "min_width": 90}
        self.file = FileField("csv", "CSV file", ".csv,text/csv", MAX_BYTES, "use `ntkgp fit` instead")
        self.target = Select(title="Target", name="target", options=[NONE], value="", **wide)
        self.first = Select(title="Input", name="first", options=[NONE], value="", **wide)
        self.second = Select(title="Second input", name="second", options=[NONE], value="", **wide)
        self.tuned = CheckboxGroup(labels=["learn noise and scales from the data"], active=[0], name="tuned", **wide)
        self.at = Slider(title="Slice at", name="slice", start=0, end=1, step=0.01, value=0.5, visible=False, **wide)
        self.text = texts.box("data_status", HINT)
        self.band = ColumnDataSource({name: [] for name in ("x", "mean", "low", "high", "total_low", "total_high")})
        self.points = ColumnDataSource({"x": [], "y": [], "alpha": []})
        self.image = ColumnDataSource({"std": [], "x": [], "y": [], "dw": [], "dh": []})
        self.places = ColumnDataSource({"x": [], "y": []})
        self.next = ColumnDataSource({"x": [], "y": []})
        self.slice = self._slice()
        self.map = self._map()
        self.figures = column(self.text, sizing_mode="stretch_width", name="data_figures")
        self.restyle(LIGHT)

    def _slice(self) -> Any:
        made = plain_figure("data_slice", "Posterior", "", "", 360, x_range=Range1d(start=0, end=1))
        self.areas = [
            made.varea("x", "low", "total_low", source=self.band, fill_alpha=0.3),
            made.varea("x", "high", "total_high", source=self.band, fill_alpha=0.3),
            made.varea("x", "low", "high", source=self.band, fill_alpha=0.28),
        ]
        self.mean = made.line("x", "mean", source=self.band, line_width=2.4)
        self.dots = made.scatter("x", "y", source=self.points, size=7, fill_alpha="alpha", line_alpha=0.5)
        self.next_line = Span(location=0, dimension="height", line_dash="dashed", line_width=2, visible=False)
        made.add_layout(self.next_line)
        return made

    def _map(self) -> Any:
        made = plain_figure(
            "data_map", "Epistemic std; the star marks the best next point", "", "", 420, x_range=Range1d(start=0, end=1),
            y_range=Range1d(start=0, end=1),
        )  # fmt: skip
        self.colours = LinearColorMapper(palette="Cividis256")
        made.image("std", "x", "y", "dw", "dh", source=self.image, color_mapper=self.colours)
        made.scatter("x", "y", source=self.places, size=5, fill_color="white", line_color="black", line_width=0.7)
        made.scatter(
            "x", "y", source=self.next, size=20, marker="star", fill_color="#D55E00", line_color="white", line_width=1.5
        )
        self.bar = ColorBar(color_mapper=self.colours, ticker=BasicTicker(), background_fill_alpha=0, width=14)
        made.add_layout(self.bar, "right")
        return made

    def write(self, state: State) -> None:
        """Set the widgets to the state. Callbacks must be switched off."""
        names: list[Any] = list(state.table.names) if state.table else [NONE]
        self.target.options = self.first.options = names
        self.second.options = [NONE, *names] if state.table else [NONE]
        self.target.value = state.target
        self.first.value, self.second.value = (*state.inputs, "", "")[:2]
        self.tuned.active = [0] if state.tuned else []

    def chosen(self) -> tuple[str, tuple[str, ...]]:
        """The target and the inputs selected in the widgets."""
        return str(self.target.value), tuple(str(name) for name in (self.first.value, self.second.value) if name)

    def show(self, model: DataModel, state: State) -> None:
        """Show the slice, the map and the next point of a fitted table."""
        where, std = next_point(model)
        two = model.x.shape[1] == 2
        self.at.visible = two
        self.figures.children = [self.text, self.slice, self.map] if two else [self.text, self.slice]
        for made in (self.slice, self.map):
            made.xaxis.axis_label = PlainText(text=state.inputs[0])
        self.slice.yaxis.axis_label = PlainText(text=state.target)
        if two:
            self._show_map(model, state, where)
        self.show_slice(model, state)
        self.next_line.visible, self.next_line.location = not two, float(where[0])
        self.text.text = texts.table_numbers(len(model.y), model.noise_std, state.inputs, where.tolist(), std)

    def _show_map(self, model: DataModel, state: State, where: Any) -> None:
        picture = uncertainty_map(model)
        (x, y), (width, height) = picture.low.tolist(), (picture.high - picture.low).tolist()
        self.image.data = {"std": [picture.std.numpy()], "x": [x], "y": [y], "dw": [width], "dh": [height]}
        self.colours.low, self.colours.high = float(picture.std.min()), float(picture.std.max())
        self.map.x_range.start, self.map.x_range.end = x, x + width
        self.map.y_range.start, self.map.y_range.end = y, y + height
        self.map.yaxis.axis_label = PlainText(text=state.inputs[1])
        self.places.data = {"x": model.x[:, 0].tolist(), "y": model.x[:, 1].tolist()}
        self.next.data = {"x": [float(where[0])], "y": [float(where[1])]}

    def show_slice(self, model: DataModel, state: State) -> None:
        """Show the slice at the position of its slider."""
        at, title = None, f"Posterior of {state.target}"
        if model.x.shape[1] == 2:
            low, high = model.box()
            at = float(low[1] + self.at.value * (high[1] - low[1]))
            title += f" at {state.inputs[1]} = {at:.4g}"
        self.slice.title.text = PlainText(text=title)
        found = slice_of(model, at)
        p = found.prediction
        mean, std, total = p.mean.numpy(), p.std.numpy(), p.total_std.numpy()
        self.band.data = {
            "x": found.x.numpy(), "mean": mean, "low": mean - 2 * std, "high": mean + 2 * std, "total_low": mean - 2 * total,
            "total_high": mean + 2 * total,
        }  # fmt: skip
        self.points.data = {"x": model.x[:, 0].tolist(), "y": model.y.tolist(), "alpha": found.near.tolist()}
        self.slice.x_range.start, self.slice.x_range.end = float(found.x[0]), float(found.x[-1])

    def restyle(self, palette: Palette) -> None:
        """Set all colours to this palette."""
        for made in (self.slice, self.map):
            restyle(made, palette)
        for area, colour in zip(self.areas, (palette.total, palette.total, palette.mean), strict=True):
            area.glyph.fill_color = colour
        self.mean.glyph.line_color = palette.mean
        self.dots.glyph.fill_color = self.dots.glyph.line_color = palette.data
        self.next_line.line_color = palette.data
        self.bar.major_label_text_color = palette.text
