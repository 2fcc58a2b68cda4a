"""States of the explorer that its tests share."""

from dataclasses import replace

import pytest

from ntkgp.apps.explorer.model.csv_table import Table
from ntkgp.apps.explorer.model.state import State, start

POINTS = ((-2.0, 1.0), (-1.1, 0.2), (0.5, -0.5), (0.9, 0.1), (2.0, 0.3), (3.3, -1.0))
SMALL = State(points=POINTS, noise_var=0.05, rank=3, width=16)
TABLE = Table(("a", "b", "c"), ((0.0, 1.0, 2.0, 3.0, 9.0), (5.0, 2.0, 4.0, 1.0, 3.0), (1.0, 2.0, 2.5, 4.0, 9.0)))
STATES = {
    "usual": SMALL,
    "paper's": start("paper"),
    "every direction": replace(SMALL, rank=6),
    "more than every direction": replace(SMALL, rank=50),
    "tail": replace(SMALL, tail=7),
    "deep, smooth, scaled": replace(SMALL, depth=3, sharpness=1.0, normalisation="scaled", seed=3),
    "one layer, raw": replace(SMALL, depth=1, normalisation="raw", probe=3.9),
    "little noise": replace(SMALL, noise_var=1e-6),
    "much noise": replace(SMALL, noise_var=10.0),
    "one point": State(points=((1.0, 2.0),), width=16),
    "identical points": State(points=((1.0, 2.0),) * 5, width=16, rank=3),
    "same x": State(points=((1.0, 2.0), (1.0, -2.0), (0.0, 1.0)), width=16, noise_var=1e-4),
}


def every_state() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("state", STATES.values(), ids=STATES.keys())
