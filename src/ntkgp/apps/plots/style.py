"""Colours and empty figures shared by all plots; matplotlib is imported when something is drawn."""

import math
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:  # matplotlib is optional: it is imported when something is drawn, not with the library
    Axes = Figure = Any


# Blue, orange and grey of the Okabe–Ito palette, which colour-blind readers can distinguish.
MEAN, DATA, TRUTH = "#0072B2", "#D55E00", "#555555"
LIGHT = "#99C6E0"  # the blue at 40 % on white
MAX_DRAWN_POINTS = 1000  # in a scatter plot: more points would only hide each other


def figure(width: float, height: float) -> Figure:
    """An empty figure, independent of pyplot; sizes in inches.

    Example:
        >>> figure(4, 3).axes
        []
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib, which is not installed: run pip install 'ntkgp[cli]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def thinned(*values: Tensor) -> list[Tensor]:
    """At most MAX_DRAWN_POINTS evenly spaced values of each tensor, flattened and on the CPU."""
    flat = [t.detach().cpu().double().flatten() for t in values]
    every = math.ceil(len(flat[0]) / MAX_DRAWN_POINTS)
    return [t[::every] for t in flat]
