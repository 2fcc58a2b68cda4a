"""The exact posterior over the observations: Ã = I + K̃ factorised, equations (1) and (2) of the paper."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.locks import cached_property
from ntkgp._system.memory import free_bytes
from ntkgp.linalg.cholesky import BLOCK, Cholesky
from ntkgp.linalg.growing_cholesky import GrowingCholesky
from ntkgp.posterior.exact.form import Form
from ntkgp.posterior.exact.growing_state import growing_state, restore_growing
from ntkgp.posterior.exact.kernel_sample import KernelSample, tangent_of
from ntkgp.posterior.exact.rounding import STABLE_ERROR, rounding_unit, warn_if_rounded
from ntkgp.posterior.samples import FunctionSample, LinearSample
from ntkgp.problem.problem import Problem
from ntkgp.storage.state import State
from ntkgp.tangent.infinite.functions import PriorFunctions

CROSS_COPIES = 5  # copies of the kernel queries × training points in memory: raw, whitened, transposed, solved, squared
DRAWS_PER_BLOCK = 1024  # functions drawn in one block of columns
GOLDEN_RATIO = 0.6180339887498949  # its multiples modulo 1 spread evenly, so the checked points do too


@dataclass(frozen=True)
class KernelForm(Form):
    """Ã = I + K̃ factorised, α = Ã⁻¹ r̃."""

    problem: Problem
    cholesky: GrowingCholesky
    alpha: Float[Tensor, "NC"]
    backward_error: float
    refactored: int = 0

    side = "kernel"

    @classmethod
    def of(cls, problem: Problem, refactored: int = 0, progress: bool = False) -> "KernelForm":
        """Factorise Ã. Cost: (N·C)³/3 operations; memory one N·C × N·C matrix."""
        check_memory(problem, 1)
        matrix = problem.operators.gram()
        matrix.diagonal().add_(1.0)
        found, r = Cholesky.of(matrix, progress), problem.data.whitened_residual.unsqueeze(1)
        alpha = found.solve(r)
        residual = (found.product(alpha) + found.jitter * alpha - r).squeeze(1)
        alpha, r, cholesky = alpha.squeeze(1), r.squeeze(1), GrowingCholesky.of(found)
        # Jitter is larger than rounding and has a separate warning.
        trace = 0.0 if found.jitter else float(found.diagonal.sum())
        misfit = float((r @ alpha).clamp_min(0).sqrt())
        _warn_if_rounded(residual, r, trace=trace, unit=problem.network.unit, misfit=misfit)
        return cls(problem, cholesky, alpha, cholesky.backward_error(residual, alpha, r), refactored)

    def with_targets(self, problem: Problem, check: bool) -> "KernelForm":
        """The form of a problem that differs only in its targets. Cost: two solves; with `check`, N² values of the kernel."""
        r = problem.data.whitened_residual
        alpha = self.cholesky.solve(r.unsqueeze(1)).squeeze(1)
        if not check:
            return KernelForm(problem, self.cholesky, alpha, self.backward_error, self.refactored)
        residual = problem.operators.kernel_times(alpha.unsqueeze(1)).squeeze(1) + (1 + self.jitter) * alpha - r
        _warn_if_rounded(residual, r)
        return KernelForm(problem, self.cholesky, alpha, self.cholesky.backward_error(residual, alpha, r), self.refactored)

    @property
    def size(self) -> int:
        """N·C."""
        return len(self.alpha)

    @property
    def jitter(self) -> float:
        """Added to the diagonal because of rounding."""
        return self.cholesky.jitter

    @property
    def weights(self) -> Float[Tensor, "P 1"]:
        """J̃ᵀα."""
        return self._weights

    @cached_property
    def _weights(self) -> Float[Tensor, "P 1"]:
        return self.problem.operators.whitened.rmatmat(self.alpha.unsqueeze(1))

    @property
    def log_determinant(self) -> float:
        """Log det Ã."""
        return 2 * float(self.cholesky.diagonal().log().sum())

    @property
    def misfit(self) -> float:
        """r̃ᵀα."""
        return float(self.problem.data.whitened_residual @ self.alpha)

    @property
    def numbers_per_row(self) -> int:
        """Copies of a row of the kernel between queries and observations."""
        return CROSS_COPIES * self.size

    def change(self, x: Tensor) -> Float[Tensor, "MC"]:
        """J′ J̃ᵀα where the network has weights, K̃(x′, x)α where it has not."""
        operators = self.problem.operators
        if operators.has_weights:
            return operators.at(x).matmat(self.weights)[:, 0]
        return operators.cross(operators.kernel_at(x)) @ self.alpha

    def blocks(self, x: Tensor, groups: int) -> tuple[Float[Tensor, "MC"], Float[Tensor, "groups k k"]]:
        """K̃(x′,x)α, and K(x′,x′) − K̃(x′,x) Ã⁻¹ K̃(x,x′) per group. Cost: (N·C)² operations per row."""
        rows = self.problem.operators.kernel_at(x)
        cross = self.problem.operators.cross(rows)
        half = self.cholesky.half_solve(cross.T).T.unflatten(0, (groups, -1))
        k = half.shape[1]
        if k == 1:
            covariance = rows.diag().view(-1, 1, 1) - half.square().sum(dim=2, keepdim=True)
        else:
            prior = rows.gram().view(groups, k, groups, k).diagonal(dim1=0, dim2=2).movedim(-1, 0)
            covariance = prior - half @ half.mT
        covariance.diagonal(dim1=1, dim2=2).clamp_min_(0)
        return cross @ self.alpha, covariance

    def sample(self, count: int, generator: torch.Generator | None) -> FunctionSample:
        """Matheron's rule. Cost per draw: 4·N·C·P operations and one solve; memory (P + N·C)·count numbers."""
        if not self.problem.operators.has_weights:
            return self._kernel_sample(count, generator)
        operator, r = self.problem.operators.whitened, self.problem.data.whitened_residual.unsqueeze(1)
        rows, parameters = operator.shape
        weights, noise = operator.normal(parameters, count, generator), operator.normal(rows, count, generator)
        for z, e in zip(weights.split(DRAWS_PER_BLOCK, dim=1), noise.split(DRAWS_PER_BLOCK, dim=1), strict=True):
            z += operator.rmatmat(self.cholesky.solve(r - operator.matmat(z) - e))
        return LinearSample(self.problem, weights)

    def _kernel_sample(self, count: int, generator: torch.Generator | None) -> KernelSample:
        """The same with functions of the prior drawn by finite networks."""
        problem, data = self.problem, self.problem.data
        prior, noise = PriorFunctions.draw(tangent_of(problem), count, generator), data.draw_noise(count, generator)
        values = prior.at_many(data.x) / data.noise_std.unsqueeze(1)
        return KernelSample(problem, prior, self.cholesky.solve(data.whitened_residual.unsqueeze(1) - values - noise))

    def leave_one_out(self) -> tuple[Float[Tensor, "NC"], Float[Tensor, "NC"]]:
        """From the diagonal of Ã⁻¹: the variance of an observation given the others is 1/[Ã⁻¹]_ii."""
        scale = self.cholesky.inverse_diagonal.rsqrt()
        return self.alpha * scale, scale

    def updated(self, new: Problem, whole: Problem) -> "KernelForm":
        """Append the new rows to the factor.

        Appending rows is stable, so errors do not accumulate. Measure the residuals of the new rows and of one old point (a
        different one each time), or of all rows after a merge into one matrix. If a residual is too large for a
        stable factorisation, factorise everything again.
        """
        check_memory(whole, 2)
        old, before = self.problem, self.cholesky
        cross = old.operators.cross(new.operators.rows) / new.data.noise_std.unsqueeze(1)
        block = new.operators.gram()
        block.diagonal().add_(1.0)
        cholesky = before.extended(cross, block)
        if cholesky is None:
            return KernelForm.of(whole, self.refactored + 1)
        r, count = whole.data.whitened_residual, len(before)
        alpha = cholesky.solve(r.unsqueeze(1)).squeeze(1)
        if cholesky.count == 0:  # the rows were merged into one matrix: check all of them
            rows, product = slice(None), whole.operators.kernel_times(alpha.unsqueeze(1)).squeeze(1) + alpha
        else:  # check the new rows and one old point
            C, std = whole.outputs, whole.data.noise_std
            turn = int(whole.data.points * GOLDEN_RATIO % 1 * old.data.points)
            rows = [*range(turn * C, (turn + 1) * C), *range(count, len(r))]
            kernel = whole.operators.cross(whole.operators.kernel_at(whole.data.x[turn : turn + 1]))
            first = kernel @ alpha / std[rows[:C]] + alpha[rows[:C]]
            product = torch.cat([first, cross @ alpha[:count] + block @ alpha[count:]])
        residual = product + cholesky.jitter * alpha[rows] - r[rows]
        error = cholesky.backward_error(residual, alpha, r)
        if not error <= STABLE_ERROR * rounding_unit(alpha.dtype):
            return KernelForm.of(whole, self.refactored + 1)
        _warn_if_rounded(residual, r)
        return KernelForm(whole, cholesky, alpha, error, self.refactored)

    def state(self) -> State:
        """The factor, the rows that were appended, and α."""
        found = {"alpha": self.alpha, "backward_error": self.backward_error, "refactored": self.refactored}
        return growing_state(self.cholesky) | State.of(**found)

    @classmethod
    def from_state(cls, state: State, problem: Problem) -> "KernelForm":
        """Rebuild the form."""
        dtype = problem.network.dtype
        cholesky = restore_growing(state, len(problem.data.residual), dtype)
        alpha = state.tensor("alpha", "NC", dtype)
        return cls(problem, cholesky, alpha, state.fact("backward_error", float), state.fact("refactored", int))


def check_memory(problem: Problem, matrices: int) -> None:
    """Raise if `matrices` N·C × N·C matrices and a block of columns do not fit into free memory."""
    rows = len(problem.data.residual)
    needed = problem.data.residual.element_size() * rows * (matrices * rows + BLOCK)
    if needed > (free := free_bytes(problem.network.device)):
        instead = "method=ntkgp.LowRank(...), or a network with fewer parameters"
        raise ValueError(
            f"the exact posterior of {problem.data.points} points needs {needed / 2**30:.1f} GiB more memory, but only "
            f"{free / 2**30:.1f} GiB are free; use {instead if problem.operators.has_weights else 'a network of finite width'}"
        )


def _warn_if_rounded(residual: Float[Tensor, "some"], r: Float[Tensor, "NC"], **sizes: float) -> None:
    """Warn of rounding, given some or all entries of ρ = Ãα − r̃.

    The error of the mean at x is k̃ᵀÃ⁻¹ρ. This is at most ‖ρ‖ posterior standard deviations, because ‖Ã⁻¹k̃‖² is at most the
    variance at x.
    """
    shift = float(residual.norm()) * math.sqrt(len(r) / len(residual))
    warn_if_rounded(shift, float(r.norm()), rounding_unit(r.dtype), **sizes)
