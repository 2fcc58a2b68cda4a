"""The linear systems over the weights: for the mean and for posterior draws."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.errors import NumericalWarning
from ntkgp._system.memory import rows_per_chunk
from ntkgp._system.resume import NOWHERE, Bookmark
from ntkgp.linalg.cgls import CGLS, Solution
from ntkgp.linalg.head import Head
from ntkgp.posterior.lowrank.side import Normal
from ntkgp.problem.problem import Problem

SILENT_ERROR = 0.1  # largest error of the mean by rounding without a warning, in posterior standard deviations
SOLVER_SHARE = 0.5  # largest error of a draw by the solver, relative to the error of the std by the number of draws
LEAST_COLUMNS, MOST_COLUMNS = 65, 257  # right-hand sides that are solved together
BLOCK_BYTES = 2**30  # memory for their vectors, if that is enough for LEAST_COLUMNS
VECTORS = 8  # vectors over the weights in memory per right-hand side
MEAN = math.nan  # accuracy of the column that gives the mean: the solver knows it
DIGITS = 1e-9  # nor is there one for an error that is smaller than this part of the targets


@dataclass(frozen=True)
class Solved:
    """The right-hand sides of the mean and the draws, and their solutions."""

    sides: Float[Tensor, "P S"]
    solution: Solution

    def beside(self, other: "Solved") -> "Solved":
        """The columns of both."""
        return Solved(torch.cat([self.sides, other.sides], dim=1), self.solution.beside(other.solution))


@dataclass(frozen=True)
class Solver:
    """How the linear systems of one posterior are solved, a block of columns at a time."""

    solver: CGLS
    normal: Normal
    head: Head
    generator: torch.Generator | None
    progress: bool = False
    bookmark: Callable[[str], Bookmark] = field(default=lambda stage: NOWHERE)

    def mean_and_draws(self, draws: int) -> Solved:
        """Solve for the mean and for `draws` posterior draws, the first ones together with the mean."""
        first = min(draws, self.columns)
        sides = torch.cat([mean_side(self.normal.problem), draw_sides(self.normal.problem, first, self.generator)], dim=1)
        found = self._solved(sides, torch.tensor([MEAN, *[draw_accuracy(draws)] * first]), "solve")
        _warn_if_rounded(self.normal.problem, sides, found.solution)
        return found if first == draws else found.beside(self.draws(draws - first, draws))

    def draws(self, count: int, together: int) -> Solved:
        """Solve for `count` more posterior draws of weights, zero in the mean, that are used `together` with others."""
        parts = []
        for k, start in enumerate(range(0, count, self.columns)):
            sides = draw_sides(self.normal.problem, min(self.columns, count - start), self.generator)
            parts.append(self._solved(sides, torch.full((sides.shape[1],), draw_accuracy(together)), f"solve-{k + 1}"))
        return reduce(Solved.beside, parts)

    @property
    def columns(self) -> int:
        """How many columns are solved together: as many as share a Krylov space well and fit the memory."""
        return block_columns(self.normal.problem)

    def _solved(self, sides: Tensor, accuracy: Tensor, stage: str) -> Solved:
        accuracy, system = accuracy.to(sides), self.normal.system(self.head)
        solution = self.solver.solve(
            system, sides, accuracy=accuracy, progress=self.progress, bookmark=self.bookmark(stage)
        )  # fmt: skip
        return Solved(sides, solution)


def block_columns(problem: Problem) -> int:
    """How many columns are solved together: as many as share a Krylov space well and fit the memory."""
    fit = rows_per_chunk(VECTORS * 8 * problem.operators.parameters, budget=BLOCK_BYTES)
    return min(MOST_COLUMNS, max(LEAST_COLUMNS, fit))


def solved(
    solver: CGLS, normal: Normal, head: Head, sides: Tensor, accuracy: Tensor, start: Tensor, progress: bool
) -> Solution:
    """Solve for all columns from a known start, a block of columns at a time."""
    system, columns = normal.system(head), block_columns(normal.problem)
    parts = [
        solver.solve(system, c, accuracy=a, start=x, progress=progress)
        for c, a, x in zip(sides.split(columns, dim=1), accuracy.split(columns), start.split(columns, dim=1), strict=True)
    ]
    return reduce(Solution.beside, parts)


def draw_accuracy(draws: int) -> float:
    """The error, in posterior standard deviations, that a draw may have beside the random error of `draws` draws."""
    return SOLVER_SHARE * (2 * max(draws, 1)) ** -0.5


def mean_side(problem: Problem) -> Float[Tensor, "P 1"]:
    """J̃ᵀ r̃, the right-hand side of the mean."""
    return problem.operators.whitened.rmatmat(problem.data.whitened_residual.double().unsqueeze(1))


def draw_sides(problem: Problem, count: int, generator: torch.Generator | None) -> Float[Tensor, "P T"]:
    """J̃ᵀε + ξ with standard normal ε and ξ: the solutions of (G + I)δ = J̃ᵀε + ξ have the posterior covariance (G + I)⁻¹."""
    if not count:
        return torch.zeros_like(problem.operators.draw_weights(0, generator)).double()
    ground = problem.operators.draw_weights(count, generator).double()
    return ground + problem.operators.whitened.rmatmat(problem.data.draw_noise(count, generator).double())


def _warn_if_rounded(problem: Problem, sides: Float[Tensor, "P S"], solution: Solution) -> None:
    """Warn if rounding may change the mean by a visible part of its posterior standard deviation.

    An error e of a right-hand side moves the mean at any point by at most ‖e‖ standard deviations. J̃ᵀr̃ rounds by about
    ε‖J̃‖‖r̃‖. An error E of J̃ itself moves the mean by ‖EΔ‖ + ‖Eᵀ(r̃ − J̃Δ)‖, and ‖Δ‖² + ‖r̃ − J̃Δ‖² = r̃ᵀ(r̃ − J̃Δ).
    """
    operators, data = problem.operators, problem.data
    c, mean = sides[:, :1], solution.x[:, :1]
    targets = data.total(data.whitened_residual.double().square().sum()) ** 0.5
    misfit = max(0.0, targets**2 - float(operators.space.dots(c, mean))) ** 0.5
    unit, norm = problem.network.unit, operators.trace**0.5
    off = 2 * norm * (torch.finfo(c.dtype).eps * targets + unit * misfit)
    if off > SILENT_ERROR and off * norm > DIGITS * targets:
        warnings.warn(
            f"noise_var is so small that after rounding to {unit:.0e} answers may be off by {off:.1g} posterior standard "
            "deviations; raise noise_var, rescale y, or let the network compute in float64 throughout",
            NumericalWarning,
            stacklevel=5,
        )
