"""The layout of the page: builds the roots that page.html places."""

from pathlib import Path
from typing import Any

from bokeh.document import Document
from bokeh.layouts import column, row
from bokeh.models import Div, UIElement

from ntkgp.apps.explorer.page.controls import Controls
from ntkgp.apps.explorer.page.data_view import DataPanel
from ntkgp.apps.explorer.page.share import SharePanel
from ntkgp.apps.explorer.page.views import Playground

PAGE = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")


def lay_out(
    doc: Document,
    views: Playground,
    c: Controls,
    t: DataPanel,
    s: SharePanel,
    training: UIElement,
    texts: tuple[Div, ...],
) -> None:
    """Add all parts to the document, in columns and rows that also fit on a phone."""
    wide: dict[str, Any] = {"sizing_mode": "stretch_width"}
    first, second = list(s.buttons.values())[:2], list(s.buttons.values())[2:]  # two buttons per row fit on a phone
    roots = [
        column(c["problem"], row(c.x, c.y, **wide), c.add, c.chosen, row(c.delete, c.clear, **wide), **wide,
               name="points_controls"),
        column(c["noise_var"], c["rank"], c["tail"], c["probe"], **wide, name="posterior_controls"),
        column(c["width"], c["depth"], c["sharpness"], c["normalisation"], c["seed"], **wide, name="network_controls"),
        column(c["shown"], c["samples"], **wide, name="show_controls"),
        training,
        column(t.file.widget, t.target, t.first, t.second, t.tuned, t.at, **wide, name="data_controls"),
        t.figures,
        column(s.link, row(*first, **wide), row(*second, **wide), s.file.widget, s.script, s.download, **wide,
               name="share_panel"),
        views.main, views.spectrum, views.predictors, *texts, s.dark,
    ]  # fmt: skip
    for root in roots:
        doc.add_root(root)
    doc.title, doc.template = "ntkgp explorer", PAGE  # pyright: ignore[reportAttributeAccessIssue]
