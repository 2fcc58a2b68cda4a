"""Texts and numbers of the page, as HTML: the only file that makes HTML, so every text from outside is escaped here."""

import html
from collections.abc import Sequence

from bokeh.models import Div

from ntkgp.apps.explorer.model.compute import Answer
from ntkgp.apps.explorer.model.state import State
from ntkgp.apps.explorer.model.training import Trained, Training
from ntkgp.apps.explorer.page.colours import DASHES, Palette

TEXT_SHEET = """
:host { color: var(--text); font: 15px/1.45 system-ui, sans-serif; }
.bk-clearfix { width: 100%; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; padding: 2px 6px; font-size: 0.85rem; }
.legend span { display: inline-flex; align-items: center; gap: 6px; white-space: nowrap; }
.numbers { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 6px; }
.numbers dt { color: var(--soft); font-size: 0.78rem; }
.numbers dd { margin: 0; font-variant-numeric: tabular-nums; font-weight: 600; }
p { margin: 6px 0; padding: 6px 10px; border-radius: 6px; border-left: 4px solid var(--accent); background: var(--panel); }
.error { border-left-color: var(--bad); color: var(--bad); font-weight: 600; }
"""


def box(name: str, text: str = "") -> Div:
    """An element for the HTML of this file. Without TeX, which could turn an escaped name into a link that runs a script."""
    return Div(text=text, name=name, disable_math=True, stylesheets=[TEXT_SHEET], sizing_mode="stretch_width")


def numbers(answer: Answer, state: State, update: int) -> str:
    """The numbers below the plot: values at the probe, errors of the bands, and computing time."""
    std = {name: float(getattr(answer, name)[-1]) ** 0.5 for name in ("variance", "exact", "lower", "upper", "paper")}
    shown = {
        "points": ("N", f"{answer.points}"),
        "noise": ("σ²", f"{state.noise_var:.5g}"),
        "rank": ("K", f"{answer.rank}"),
        "tail": ("T", f"{state.tail}"),
        "probe": ("x*", f"{state.probe:.5g}"),
        "mean": ("mean at x*", f"{float(answer.mean[-1]):.5g}"),
        "std": ("std, K and T", f"{std['variance']:.5g}"),
        "exact": ("exact std", f"{std['exact']:.5g}"),
        "lower": ("lower", f"{std['lower']:.5g}"),
        "upper": ("upper, ours", f"{std['upper']:.5g}"),
        "paper": ("upper, the paper's", f"{std['paper']:.5g}"),
        "error": ("error of our band", f"{answer.error(answer.variance):.3%}"),
        "paper_error": ("error of the paper's band", f"{answer.error(answer.paper):.3%}"),
        "time": ("computed in", f"{answer.milliseconds:.1f} ms"),
    }
    return _list(shown, update)


def table_numbers(rows: int, noise: float, inputs: Sequence[str], place: Sequence[float], std: float) -> str:
    """The numbers of a fitted table: rows, noise, and the best next point."""
    shown = {
        "rows": ("rows", f"{rows}"),
        "data_noise": ("noise std", f"{noise:.5g}"),
        "next": ("best next point", ", ".join(f"{name} = {x:.5g}" for name, x in zip(inputs, place, strict=True))),
        "next_std": ("epistemic std there", f"{std:.5g}"),
    }
    return _list(shown)


def training(run: Training | None, now: Trained | None, running: bool) -> str:
    """Progress of a training."""
    if run is None or now is None:
        return ""
    stage = "training" if running else "done" if run.finished else "stopped"
    shown = {
        "stage": ("networks", f"{run.networks}, {stage}"),
        "step": ("step", f"{now.step}"),
        "seconds": ("training time", f"{now.seconds:.1f} s"),
        "mean_error": ("error of the mean", f"{now.mean_error:.3%}"),
        "std_error": ("error of the std", f"{now.std_error:.3%}"),
    }
    return _list(shown, now.step)


def message(errors: list[str], notes: tuple[str, ...] = ()) -> str:
    """Errors first, then notes; empty if there are none."""
    parts = [f"<p class='error' role='alert'>{html.escape(text)}</p>" for text in errors]
    return "".join(parts + [f"<p class='note' role='status'>{html.escape(text)}</p>" for text in notes])


def legend(palette: Palette, state: State, trained: bool) -> str:
    """The legend of the plot: colour and dashes of each line."""
    entries = [_swatch(palette.data, "data", "dot"), _swatch(palette.mean, "mean", "solid", 3)]
    lines = {
        "epistemic": [_swatch(palette.mean, "epistemic, ±2 std", "area")],
        "total": [_swatch(palette.total, "with noise", "area")],
        "exact": [_swatch(palette.exact, "exact", DASHES["exact"])],
        "bracket": [_swatch(palette.bracket, "upper, ours", "dashed"), _swatch(palette.bracket, "lower", "dotted")],
        "paper": [_swatch(palette.paper, "upper, the paper's", "dashdot")],
        "samples": [_swatch(palette.samples, "samples", "solid")],
        "trained": [_swatch(palette.trained, "trained networks", "dashed", 3)] if trained else [],
    }
    return (
        "<div class='legend'>"
        + "".join(entries + [e for name, some in lines.items() if name in state.shown for e in some])
        + "</div>"
    )


def _swatch(colour: str, label: str, kind: str, width: float = 2) -> str:
    strokes = {"dashed": "5 3", "dotted": "1.5 3", "dashdot": "6 3 1.5 3", "solid": "none"}
    if kind == "area":
        drawn = f"<rect x='0' y='2' width='24' height='10' fill='{colour}' fill-opacity='0.3'/>"
    elif kind == "dot":
        drawn = f"<circle cx='12' cy='7' r='5' fill='{colour}'/>"
    else:
        drawn = f"<path d='M0 7H24' stroke='{colour}' stroke-width='{width}' stroke-dasharray='{strokes[kind]}'/>"
    return f"<span><svg width='24' height='14' aria-hidden='true'>{drawn}</svg>{html.escape(label)}</span>"


def _list(shown: dict[str, tuple[str, str]], update: int = 0) -> str:
    items = [
        f"<div><dt>{html.escape(label)}</dt><dd data-number='{key}'>{html.escape(value)}</dd></div>"
        for key, (label, value) in shown.items()
    ]
    return f"<dl class='numbers' data-update='{update}'>{''.join(items)}</dl>"
