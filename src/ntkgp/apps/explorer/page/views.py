"""The figures of the playground: they show an answer and compute nothing."""

from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, PointDrawTool, Range1d, Span
from bokeh.plotting import figure
from torch import Tensor

from ntkgp.apps.explorer.model.compute import GRID, Answer
from ntkgp.apps.explorer.model.state import HIGH, LOW, MAX_POINTS, State, rounded
from ntkgp.apps.explorer.model.training import Trained
from ntkgp.apps.explorer.page.colours import DASHES, LIGHT, Palette, ramp

TOOLS = "wheel_zoom,reset,save"
AREAS = ("epistemic_low", "epistemic_high", "total_low", "total_high")
EDGES = ("exact", "upper", "lower", "paper")


def plain_figure(name: str, title: str, x: str, y: str, height: int = 250, **options: Any) -> Any:
    """An empty figure in the style of the page, full width. Any, because Bokeh's type hints lack attributes of figures."""
    made = figure(
        name=name, title=title, x_axis_label=x, y_axis_label=y, height=height, sizing_mode="stretch_width",
        background_fill_alpha=0, border_fill_alpha=0, outline_line_color=None, tools=TOOLS, toolbar_location="above",
        html_attributes={"role": "img", "aria-label": title}, min_width=240, **options,
    )  # fmt: skip
    made.axis.minor_tick_line_color = None  # they slow down drawing
    made.toolbar.logo = None
    made.toolbar.autohide = True
    return made


class Playground:
    """The posterior, the spectrum of the kernel, the predictors, and the error curves of a training."""

    def __init__(self):
        self.palette = LIGHT
        self.points = ColumnDataSource({"x": [], "y": []}, name="points")
        self.band = ColumnDataSource({name: [] for name in ("x", "mean", *AREAS)}, name="band")
        self.edges = ColumnDataSource({name: [] for name in ("x", *EDGES)}, name="edges")
        self.samples = ColumnDataSource({"xs": [], "ys": []})
        self.trained = ColumnDataSource({"x": [], "y": []}, name="trained_band")
        self.eigenvalues = ColumnDataSource({"k": [], "value": [], "alpha": []})
        self.columns = ColumnDataSource({"xs": [], "ys": [], "colour": []})
        self.trained_columns = ColumnDataSource({"xs": [], "ys": []})
        self.errors = ColumnDataSource({"step": [], "mean": [], "std": []})
        self.main = self._main()
        self.spectrum = self._spectrum()
        self.predictors = self._predictors()
        self.curve = self._curve()
        self.restyle(LIGHT)

    @property
    def figures(self) -> tuple[Any, ...]:
        """All figures."""
        return (self.main, self.spectrum, self.predictors, self.curve)

    def _main(self) -> Any:
        y = Range1d(start=-3, end=3)
        made = plain_figure("main", "Posterior of the network", "x", "y", x_range=Range1d(start=LOW, end=HIGH), y_range=y)
        made.sizing_mode, made.height, made.min_height = "stretch_both", None, 200  # page.html sets the height
        made.title.visible = False
        self.parts: dict[str, list[Any]] = {
            "total": [  # the part added by the noise, on both sides
                made.varea("x", f"epistemic_{side}", f"total_{side}", source=self.band, fill_alpha=0.3)
                for side in ("low", "high")
            ],
            "epistemic": [made.varea("x", "epistemic_low", "epistemic_high", source=self.band, fill_alpha=0.28)],
            "samples": [made.multi_line("xs", "ys", source=self.samples, line_width=1, line_alpha=0.9)],
        }
        for layer, edges in {"paper": ["paper"], "bracket": ["upper", "lower"], "exact": ["exact"]}.items():
            self.parts[layer] = [
                made.line("x", edge, source=self.edges, line_dash=DASHES[edge], line_width=1.6) for edge in edges
            ]
        self.parts["mean"] = [made.line("x", "mean", source=self.band, line_width=2.4)]
        self.parts["trained"] = [made.line("x", "y", source=self.trained, line_dash=DASHES["trained"], line_width=2.4)]
        self.dots = made.scatter("x", "y", source=self.points, size=11, line_width=1.5, line_color="white")
        self.dots.nonselection_glyph = None  # selecting a point does not fade the others
        self.dots.selection_glyph = self.dots.glyph.clone(size=16)
        self.probe = Span(location=0, dimension="height", line_dash="2 4", line_width=1)
        made.add_layout(self.probe)
        draw = PointDrawTool(
            renderers=[self.dots], num_objects=MAX_POINTS, description="Tap: add. Drag: move. Backspace: delete"
        )
        made.add_tools(draw)
        made.toolbar.active_tap = draw
        made.toolbar.active_drag = draw
        return made

    def _spectrum(self) -> Any:
        made = plain_figure("spectrum", "Spectrum of the kernel; the first K are filled", "k", "eigenvalue", y_axis_type="log")
        self.bars = made.scatter("k", "value", source=self.eigenvalues, size=8, fill_alpha="alpha", line_width=1.5)
        self.floor = Span(location=0.01, dimension="width", line_dash="dashed", line_width=1.5)
        self.head_end = Span(location=0.5, dimension="height", line_dash="dotted", line_width=1.5)
        made.add_layout(self.floor)
        made.add_layout(self.head_end)
        return made

    def _predictors(self) -> Any:
        made = plain_figure("predictors", "Predictors: the columns of P", "x", "M u", x_range=self.main.x_range)
        self.lines = made.multi_line("xs", "ys", source=self.columns, line_color="colour", line_width=1.8)
        self.trained_lines = made.multi_line(
            "xs", "ys", source=self.trained_columns, line_dash=DASHES["trained"], line_width=1.8
        )
        return made

    def _curve(self) -> Any:
        made = plain_figure("curve", "Training: relative error against the analytic answer", "steps", "", y_axis_type="log")
        self.mean_curve = made.line("step", "mean", source=self.errors, line_width=2, legend_label="mean")
        self.std_curve = made.line("step", "std", source=self.errors, line_width=2, line_dash="dashed", legend_label="std")
        made.legend.background_fill_alpha = 0
        made.legend.border_line_color = None
        return made

    def show(self, answer: Answer, state: State) -> None:
        """Show the posterior. The points stay unchanged: the user may be dragging one."""
        x, mean = _numbers(answer.x), _numbers(answer.mean)
        band = {"x": x, "mean": mean}
        for name, variance in (("epistemic", answer.variance), ("total", answer.variance + state.noise_var)):
            band[f"{name}_low"], band[f"{name}_high"] = _sides(mean, variance)
        self.band.data = band
        edges = {name: _joined(*_sides(mean, getattr(answer, name))) for name in EDGES}
        self.edges.data = {"x": _joined(x, x), **edges}
        curves = [row[:GRID].tolist() for row in answer.samples]
        _put(self.samples, {"xs": [x.tolist()] * len(curves), "ys": curves})
        for layer, renderers in self.parts.items():
            for renderer in renderers:
                renderer.visible = layer == "mean" or layer in state.shown
        self.probe.location = state.probe

    def show_panels(self, answer: Answer, state: State) -> None:
        """Show the spectrum and the predictors."""
        x = _numbers(answer.x)
        columns = [column.tolist() for column in answer.predictors[:GRID].T]
        self.columns.data = {
            "xs": [x.tolist()] * len(columns), "ys": columns, "colour": ramp(self.palette, len(columns)),
        }  # fmt: skip

        values = answer.eigenvalues.numpy()
        # Clip zeros with rounding errors, which would stretch the logarithmic axis.
        values = np.maximum(values, 1e-12 * values.max(initial=1e-12))
        k = np.arange(1, len(values) + 1)
        _put(self.eigenvalues, {"k": k, "value": values, "alpha": np.where(k <= answer.rank, 0.9, 0.0)})
        self.floor.location = state.noise_var
        self.head_end.location = answer.rank + 0.5

    def show_points(self, state: State) -> None:
        """Show the points of the state if they differ from those of the page: the user may be dragging one."""
        if rounded(self.points.data["x"], self.points.data["y"]) != state.points:
            # Lists, because the drawing tool appends to them.
            self.points.data = {"x": [x for x, _ in state.points], "y": [y for _, y in state.points]}

    def frame(self, answer: Answer, state: State) -> None:
        """Set the vertical range to the data. It then stays fixed, so that points do not move while they are dragged."""
        reach = 2 * (answer.exact + state.noise_var).sqrt()
        values = [(answer.mean - reach)[:GRID].min(), (answer.mean + reach)[:GRID].max()]
        low, high = (
            min(float(values[0]), *(y for _, y in state.points), 0.0),
            max(float(values[1]), *(y for _, y in state.points), 0.0),
        )
        margin = 0.08 * (high - low)
        y = self.main.y_range
        y.start, y.end = low - margin, high + margin
        y.reset_start, y.reset_end = low - margin, high + margin

    def show_trained(self, now: Trained | None) -> None:
        """Show the band and the predictors of networks in training; None removes them."""
        if now is None:
            self.trained.data = {"x": [], "y": []}
            self.trained_columns.data = {"xs": [], "ys": []}
            self.errors.data = {"step": [], "mean": [], "std": []}
            return
        x, mean = np.asarray(self.band.data["x"]), _numbers(now.mean)
        self.trained.data = {"x": _joined(x, x, x), "y": _joined(mean, *_sides(mean, now.variance))}
        columns = [column.tolist() for column in now.predictors[:GRID].T]
        self.trained_columns.data = {"xs": [x.tolist()] * len(columns), "ys": columns}
        tiny = 1e-12  # a logarithmic axis has no zero
        self.errors.stream(
            {"step": [now.step], "mean": [max(now.mean_error, tiny)], "std": [max(now.std_error, tiny)]}, rollover=2000
        )

    def restyle(self, palette: Palette) -> None:
        """Set all colours to this palette."""
        self.palette = palette
        for made in self.figures:
            restyle(made, palette)
        colours = {"epistemic": palette.mean, **{name: getattr(palette, name) for name in self.parts if name != "epistemic"}}
        for layer, renderers in self.parts.items():
            for renderer in renderers:
                name = "fill_color" if layer in ("epistemic", "total") else "line_color"
                setattr(renderer.glyph, name, colours[layer])
        for glyph in (self.dots.glyph, self.dots.selection_glyph):
            glyph.fill_color = palette.data
        self.bars.glyph.fill_color = self.bars.glyph.line_color = palette.mean
        self.probe.line_color = self.head_end.line_color = palette.text
        self.floor.line_color = palette.data
        self.trained_lines.glyph.line_color = palette.trained
        self.mean_curve.glyph.line_color, self.std_curve.glyph.line_color = palette.mean, palette.trained
        self.columns.data = {**self.columns.data, "colour": ramp(palette, len(self.columns.data["xs"]))}


def restyle(made: Any, palette: Palette) -> None:
    """Set the colours of a figure's text and lines."""
    made.title.text_color = palette.text
    for axis in made.axis:
        axis.axis_label_text_color = axis.major_label_text_color = palette.text
        axis.axis_line_color = axis.major_tick_line_color = palette.text
    for grid in made.grid:
        grid.grid_line_color = palette.grid
    for legend in made.legend:
        legend.label_text_color = palette.text


def _put(source: ColumnDataSource, data: dict[str, Any]) -> None:
    """Set new data only if they differ, to save a message to the browser."""
    if not all(np.array_equal(source.data[name], column) for name, column in data.items()):
        source.data = data


def _sides(mean: np.ndarray, variance: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The mean minus and plus two standard deviations."""
    reach = 2 * _numbers(variance.sqrt())
    return mean - reach, mean + reach


def _joined(*curves: np.ndarray) -> np.ndarray:
    """Join curves into one line with gaps: one long line is cheaper for the browser than several."""
    return np.concatenate([part for curve in curves for part in (curve, [np.nan])][:-1])


def _numbers(values: Tensor) -> np.ndarray:
    """The values on the grid, without the probe, as NumPy array."""
    return values[:GRID].numpy()
