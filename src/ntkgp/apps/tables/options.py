"""Options of a table model, and the size of its networks."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ntkgp._system.check_options import check_count
from ntkgp.linalg.cgls import CGLS
from ntkgp.posterior.exact.method import Exact
from ntkgp.posterior.lowrank.method import LowRank
from ntkgp.posterior.method import Method

SOLVER_TOLERANCE = 1e-5  # relative, for the low-rank posterior mean; errors are far below the posterior std


class Size(NamedTuple):
    """Size of the recipe for tables; the cost grows with the rows and with this size.

    With many rows the features are trained for more steps: each step sees only some rows, so over-fitting is unlikely.
    """

    width: int
    warm_networks: int
    warm_steps: tuple[int, ...]


SMALL, LARGE, LARGEST = (
    Size(512, 6, (0, 60, 200)),
    Size(64, 2, (0, 200, 1000, 4000)),
    Size(32, 2, (0, 1000, 4000, 16000)),
)
MANY_ROWS = 200_000  # rows times targets; larger tables use the smallest networks


@dataclass(frozen=True)
class TableOptions:
    """Options of a fit.

    Args:
        module: None for the recipe (:func:`ntkgp.tune_table`); a network; or a function (features, outputs, generator) →
            network. A given network is tuned by :func:`ntkgp.tune`.
        method: as for :func:`ntkgp.fit`; None for `Exact` up to its limit of rows times targets and `LowRank` above.
        standardize: scale every column to mean 0 and standard deviation 1 first.
        tune: learn noise, prior variances and scales; False uses a given module and its known noise unchanged.
        width: width of the recipe's hidden layers (4·width in the local network, at most 64 in those trained for features);
            None for 512 up to the dense limit, 64 up to `MANY_ROWS`, and 32 above.
        warm_networks: number of networks trained for features; None for 6 up to the dense limit and 2 above.
        rank: rank of the low-rank posterior above the dense limit.
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
    width: int | None = None
    warm_networks: int | None = None
    rank: int = 256
    points: int = 2000
    steps: int = 100
    starts: int = 3
    seed: int = 0
    device: Any = "cpu"
    progress: bool = False

    def __post_init__(self) -> None:
        for name in ("width", "rank", "points", "steps", "starts"):
            if (value := getattr(self, name)) is not None:
                check_count(value, name, 1)

    def is_large(self, rows: int) -> bool:
        """Whether the number of rows times targets exceeds the limit of dense factorisations."""
        return rows > Exact().most_rows(torch.device(self.device))

    def size(self, rows: int) -> Size:
        """The size of the recipe for this number of rows times targets."""
        usual = SMALL if not self.is_large(rows) else LARGE if rows <= MANY_ROWS else LARGEST
        width = usual.width if self.width is None else self.width
        return Size(width, usual.warm_networks if self.warm_networks is None else self.warm_networks, usual.warm_steps)

    def method_for(self, rows: int, all_rows: int, parameters: int) -> Method:
        """The method for a fit to `rows` of the `all_rows` rows times targets of a table."""
        if self.method is not None:
            return self.method
        if not self.is_large(all_rows):
            return Exact()
        return LowRank(rank=min(self.rank, rows, parameters), tail=16, solver=CGLS(tol=SOLVER_TOLERANCE))
