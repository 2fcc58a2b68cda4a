"""The options of the method that a low-rank posterior needs later: to add data and to draw functions."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ntkgp.linalg.cgls import CGLS
from ntkgp.linalg.svd.partial_svd import SVDMethod
from ntkgp.linalg.svd.subspace import RandomizedSVD
from ntkgp.posterior.lowrank.head_search import Tolerance
from ntkgp.problem.problem import Problem


@dataclass(frozen=True)
class Options:
    """The options of :class:`LowRank` that the posterior stores."""

    rank: int | None
    rtol: float | None
    max_rank: int
    points: Tensor | None
    solver: CGLS
    svd: SVDMethod = field(default_factory=lambda: RandomizedSVD(power=1, tol=None))

    def tolerance(self, problem: Problem, generator: torch.Generator | None) -> Tolerance:
        """Return the bracket width that `rtol` requires, with the points and the largest rank."""
        assert self.rtol is not None
        points = problem.data.draw_points(512, generator) if self.points is None else self.points
        return Tolerance(self.rtol, problem.answers.checked(points), self.max_rank)
