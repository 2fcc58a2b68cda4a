"""Products with the normal matrix G = J̃ᵀJ̃, and the choice between the ways to make them."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.memory import free_bytes
from ntkgp._system.progress import progress_bar
from ntkgp.linalg.cgls import NormalSystem
from ntkgp.linalg.head import POWERS, PROBES, Head
from ntkgp.problem.problem import Problem

SOLVER_STEPS = 50  # steps of the solver assumed when costs are counted
SMALL_MATMUL_SLOWDOWN = 3  # time per flop with few columns, relative to a large matrix product


@dataclass(frozen=True)
class Normal:
    """v ↦ G v: one pass over the points, or a product with G where it was written out."""

    problem: Problem
    matrix: Float[Tensor, "P P"] | None = None  # in float64

    def __call__(self, v: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """G v, in the dtype of v."""
        return self.problem.operators.normal(v) if self.matrix is None else self.matrix.to(v.dtype) @ v

    def written_out(self, progress: bool = False) -> "Normal":
        """The same with G as a matrix. Cost: N·C·P² operations in one pass over the points; memory P² numbers."""
        operators, data = self.problem.operators, self.problem.data
        if operators.space.spread:
            raise ValueError("side must be None or 'weights' where vectors are split over ranks; or raise Group(memory=...)")
        with progress_bar(progress, total=data.points, desc="one pass over the rows", unit="row", unit_scale=True) as bar:
            return Normal(self.problem, operators.products.normal_matrix(data.precision, bar.update))

    def system(self, head: Head) -> NormalSystem:
        """(G + I)Δ = c, preconditioned by the head.

        Where the factors are float32 the solver makes its steps with float32 products: faster, and it checks itself in float64.
        """
        space = self.problem.operators.space
        if self.problem.network.dtype != torch.float32 or self.matrix is not None:
            return NormalSystem(self, head.precondition, space=space)
        return NormalSystem(self, head.precondition, lambda v: self(v.float()).double(), space)


def choose_side(problem: Problem, columns: int, solved: int) -> str:
    """Where to look for the head and to solve, by counted cost, among what fits in memory.

    On the "weights" side a product takes 2·NC·P multiplications a column. Four products steer the head and one certifies it;
    the solver makes SOLVER_STEPS and the bound on the rest POWERS, with few columns and so at a third of the speed. With the
    "kernel" J̃J̃ᵀ written out, after the N²/2 comparisons of points that form it, the products that steer take (NC)². With the
    "matrix" G = J̃ᵀJ̃ written out, after NC·P²/2, all take P². Matrices that are written out and products that certify are
    float64, which counts twice beside float32 factors.
    """
    rows, parameters = problem.operators.shape
    free, data = free_bytes(problem.network.device), problem.data
    weight = 2 if problem.network.dtype == torch.float32 else 1
    one_pass = 2 * rows * parameters
    steer = 4 * columns
    certify = weight * columns + SMALL_MATMUL_SLOWDOWN * (SOLVER_STEPS * solved + weight * POWERS * PROBES)
    forming = data.points**2 / 2 * problem.operators.tangent.chunk(problem.network.cast(data.few[:1])).kernel_operations
    costs: dict[str, float] = {"weights": (steer + certify) * one_pass}
    if 4 * 8 * rows**2 < free and data.shard is None:  # a kernel of points on several ranks is never formed
        costs["kernel"] = weight * (forming + steer * rows**2) + certify * one_pass
    if 4 * 8 * parameters**2 < free and not problem.operators.space.spread:
        costs["matrix"] = weight * (rows * parameters**2 / 2 + (steer + certify) * parameters**2)
    chosen = min(costs, key=lambda side: costs[side])
    return chosen if data.shard is None else data.shard.group.facts(chosen)[0]
