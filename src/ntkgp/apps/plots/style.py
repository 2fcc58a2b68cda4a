"""Colours and empty figures that all pictures share; matplotlib is imported when something is drawn."""

import math
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:  # an extra: asked for when something is drawn, not when the library is imported
    Axes = Figure = Any


# Blue, orange and grey of the Okabe–Ito palette: told apart by every kind of colour vision.
MEAN, DATA, TRUTH = "#0072B2", "#D55E00", "#555555"
LIGHT = "#99C6E0"  # the blue at 40 % on white
DRAWN = 1000  # points of a scatter plot: more would only cover each other


def figure(width: float, height: float) -> Figure:
    """An empty figure of its own, not one of pyplot's; sizes in inches.

    Example:
        >>> figure(4, 3).axes
        []
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need matplotlib; install it with pip install 'ntkgp[cli]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def thinned(*values: Tensor) -> list[Tensor]:
    """At most DRAWN of the values, evenly spread, flat and on the CPU."""
    flat = [t.detach().cpu().double().flatten() for t in values]
    every = math.ceil(len(flat[0]) / DRAWN)
    return [t[::every] for t in flat]
