"""Options of a table model, and the size of its networks."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ntkgp._system.check_options import check_count
from ntkgp.posterior.exact.method import Exact
from ntkgp.posterior.lowrank.method import LowRank
from ntkgp.posterior.method import Method


class Size(NamedTuple):
    """Size of the recipe for tables; the cost grows with the rows and with this size.

    With many rows the features are trained for more steps: each step sees only some rows, so over-fitting is unlikely.
    """

    width: float
    warm_networks: int
    warm_steps: tuple[int, ...]


INFINITE = Size(math.inf, 0, ())
SMALL, LARGE, LARGEST = (
    Size(512, 6, (0, 60, 200)),
    Size(64, 2, (0, 200, 1000, 4000)),
    Size(32, 2, (0, 1000, 4000, 16000)),
)
# Rows times targets up to which the network has infinite width, whose posterior takes one matrix of that size, by device.
INFINITE_ROWS = {"cpu": 20_000, "cuda": 60_000}
# Rows times targets up to which networks of finite width have the first of these sizes, by type of device, and the second.
FEW_ROWS, MANY_ROWS = {"cpu": 8_000, "cuda": 30_000}, 200_000


@dataclass(frozen=True)
class TableOptions:
    """Options of a fit.

    Args:
        module: None for the recipe (:func:`ntkgp.tune_table`); a network; or a function (features, outputs, generator) →
            network. A given network is tuned by :func:`ntkgp.tune`.
        method: as for :func:`ntkgp.fit`; None for its automatic choice, or, with a `rank`, for `LowRank`.
        standardize: scale every column to mean 0 and standard deviation 1 first.
        tune: learn noise, prior variances and scales; False uses a given module and its known noise unchanged.
        width: width of the recipe's hidden layers. None for infinite width up to `INFINITE_ROWS`, unless a rank or a method
            needs weights; else for 512 up to `FEW_ROWS`, 64 up to `MANY_ROWS`, and 32 above. With a finite width the local
            network has 4·width, and networks trained for features have at most 64.
        warm_networks: number of networks trained for features; None for 6 up to `FEW_ROWS` and 2 above. None are trained
            if the width is infinite.
        rank: directions of the head of a low-rank posterior; None for the automatic choice of a method.
        points: maximal number of rows times targets used for tuning.
        steps: as for :func:`ntkgp.tune`.
        starts: as for :func:`ntkgp.tune`.
        seed: seed of all random numbers.
        device: torch device for the computation.
        progress: show progress bars.
    """

    module: Any = None
    method: Method | None = None
    standardize: bool = True
    tune: bool = True
    width: float | None = None
    warm_networks: int | None = None
    rank: int | None = None
    points: int = 2000
    steps: int = 100
    starts: int = 3
    seed: int = 0
    device: Any = "cpu"
    progress: bool = False

    def __post_init__(self) -> None:
        if self.width is not None and self.width != math.inf:
            check_count(self.width, "width", 1)  # pyright: ignore[reportArgumentType]
        for name in ("rank", "points", "steps", "starts"):
            if (value := getattr(self, name)) is not None:
                check_count(value, name, 1)

    def is_infinite(self, rows: int) -> bool:
        """Whether the recipe's network for this number of rows times targets has infinite width."""
        if self.module is not None or self.width is not None:
            return self.module is None and self.width == math.inf
        needs_weights = self.rank is not None or not (
            self.method is None or self.method == Exact() or self.method == Exact("kernel")
        )
        return not needs_weights and rows <= INFINITE_ROWS.get(torch.device(self.device).type, INFINITE_ROWS["cpu"])

    def is_large(self, rows: int) -> bool:
        """Whether there are so many rows times targets that wide networks and float64 would take long."""
        few = FEW_ROWS.get(torch.device(self.device).type, FEW_ROWS["cpu"])
        return not self.is_infinite(rows) and rows > few

    def size(self, rows: int) -> Size:
        """The size of the recipe for this number of rows times targets."""
        if self.is_infinite(rows):
            return INFINITE
        usual = SMALL if not self.is_large(rows) else LARGE if rows <= MANY_ROWS else LARGEST
        width = usual.width if self.width is None else self.width
        return Size(width, usual.warm_networks if self.warm_networks is None else self.warm_networks, usual.warm_steps)

    def method_for(self, rows: int, parameters: int) -> Method | None:
        """The method for a fit to so many rows times targets; None for the automatic choice."""
        if self.method is not None or self.rank is None:
            return self.method
        return LowRank(rank=min(self.rank, rows, parameters))
