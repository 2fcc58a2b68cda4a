"""Products with the normal matrix G = J̃ᵀJ̃, and the choice of the cheapest way to compute them."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.memory import free_bytes
from ntkgp.linalg.cgls import NormalSystem
from ntkgp.linalg.cholesky import mirror
from ntkgp.linalg.head import POWERS, PROBES, Head
from ntkgp.posterior.choice.cost import SOLVER_STEPS
from ntkgp.problem.problem import Problem

SMALL_MATMUL_SLOWDOWN = 3  # time per flop with few columns, relative to a large matrix product
MANY_COLUMNS = 16  # columns from which on a product has its full speed


@dataclass(frozen=True)
class Normal:
    """v ↦ G v: by one pass over the points, or by the matrix G if it was formed."""

    problem: Problem
    matrix: Float[Tensor, "P P"] | None = None  # in float64

    def __call__(self, v: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """Return G v, in the dtype of v."""
        return self.problem.operators.normal(v) if self.matrix is None else self.matrix.to(v.dtype) @ v

    def written_out(self, progress: bool = False) -> "Normal":
        """Form the matrix G. Cost: N·C·P² operations in one pass over the points; memory P² numbers."""
        operators = self.problem.operators
        if operators.space.spread:
            raise ValueError(
                "side must be None or 'weights' if vectors are split over ranks, got 'matrix'; or raise Group(memory=...)"
            )
        matrix = operators.normal_matrix(progress)
        mirror(matrix.T, matrix.diagonal().clone())
        return Normal(self.problem, matrix)

    def system(self, head: Head) -> NormalSystem:
        """Return the system (G + I)Δ = c, preconditioned by the head.

        If the user's network is float32, the solver uses float32 products for its steps and float64 products to check the
        residual.
        """
        space = self.problem.operators.space
        if self.problem.steering_dtype == torch.float64 or self.matrix is not None:
            return NormalSystem(self, head.precondition, space=space, error=head.error)
        return NormalSystem(self, head.precondition, lambda v: self(v.float()).double(), space, head.error)


def choose_side(problem: Problem, columns: int, solved: int) -> str:
    """Choose the side with the fewest operations among those that fit in memory.

    On the "weights" side a product takes 2·NC·P multiplications per column. Four products find the head and one certifies it.
    The solver makes SOLVER_STEPS products and the bound on the rest POWERS; with few columns they have a third of the speed.
    The "kernel" side first forms J̃J̃ᵀ from N²/2 pairs of points; the products that find the head then take (NC)². The "matrix"
    side first forms G = J̃ᵀJ̃ with NC·P²/2 multiplications; all products then take P². Formed matrices and products that
    certify are float64, which counts twice if the others are float32.
    """
    rows, parameters = problem.operators.shape
    free, data = free_bytes(problem.network.device), problem.data
    weight = 2 if problem.steering_dtype == torch.float32 else 1
    one_pass = 2 * rows * parameters
    search = 4 * columns
    slowdown = SMALL_MATMUL_SLOWDOWN if solved < MANY_COLUMNS else 1
    certify = weight * columns + slowdown * SOLVER_STEPS * solved + SMALL_MATMUL_SLOWDOWN * weight * POWERS * PROBES
    forming = data.points**2 / 2 * problem.operators.finite.chunk(problem.network.cast(data.few[:1])).kernel_operations
    costs: dict[str, float] = {"weights": (search + certify) * one_pass}
    if 4 * 8 * rows**2 < free and data.shard is None:  # the kernel of points on several ranks is never formed
        costs["kernel"] = weight * (forming + search * rows**2) + certify * one_pass
    if 4 * 8 * parameters**2 < free and not problem.operators.space.spread:
        costs["matrix"] = weight * (rows * parameters**2 / 2 + (search + certify) * parameters**2)
    chosen = min(costs, key=lambda side: costs[side])
    return chosen if data.shard is None else data.shard.group.facts(chosen)[0]
