"""The exact posterior."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp._system.check_options import check_count
from ntkgp._system.growth import roomier
from ntkgp._system.memory import out_of_memory, rows_per_chunk
from ntkgp._system.types import MeanFunction
from ntkgp.linalg.growing_cholesky import GrowingCholesky
from ntkgp.posterior.exact.update import add_rows
from ntkgp.posterior.interface import Posterior
from ntkgp.posterior.prediction import Prediction
from ntkgp.posterior.queries import mean_chunks, predict_chunks
from ntkgp.posterior.samples import FunctionSample
from ntkgp.problem.extend import extend_problem
from ntkgp.problem.problem import Problem
from ntkgp.problem.source import UserData
from ntkgp.problem.stored import problem_state, restore_problem
from ntkgp.storage.state import State

CROSS_COPIES = 5  # copies of the kernel queries × training points in memory: raw, whitened, transposed, solved, squared
TILE_POINTS = 128  # points per kernel tile in `joint`: large enough for few calls, small enough to discard little
DRAWS_PER_BLOCK = 1024  # functions drawn in one block of columns


@dataclass(frozen=True)
class ExactPosterior(Posterior):
    """The exact posterior: Ã = I + K̃ factorised, α = Ã⁻¹ r̃.

    Attributes:
        backward_error: relative change of Ã that explains Ãα − r̃, measured when α was last computed.
        refactored: how often updates found this error too large, or Ã not positive definite, and factorised again.
    """

    problem: Problem
    cholesky: GrowingCholesky
    alpha: Float[Tensor, "NC"]
    backward_error: float
    refactored: int = 0

    kind = "exact"

    @property
    def factor(self) -> Float[Tensor, "NC NC"]:
        """The Cholesky factor as one matrix; a copy after updates."""
        return self.cholesky.dense()

    @property
    def log_marginal_likelihood(self) -> float:
        """Log p(y) = −½ rᵀA⁻¹r − ½ log det A − (N·C/2) log 2π."""
        r, std = self.problem.data.whitened_residual, self.problem.data.noise_std
        log_det = 2 * self.cholesky.diagonal().log().sum() + 2 * std.log().sum()
        return float(-0.5 * (r @ self.alpha + log_det + len(r) * torch.log(torch.tensor(2 * torch.pi, dtype=r.dtype))))

    def leave_one_out(self) -> tuple[Tensor, Tensor]:
        """Predict each training target from all others; return errors in predictive standard deviations, and these deviations.

        Uses the diagonal of A⁻¹ and needs no refit: the variance of an observation given the others is 1/[A⁻¹]_ii. Memory:
        (N·C)² numbers.
        """
        scale = torch.cholesky_inverse(self.factor).diagonal().rsqrt()
        shaped = self.problem.answers.shaped
        return shaped(self.alpha * scale), shaped(scale * self.problem.data.noise_std)

    @cached_property
    def _weights(self) -> Float[Tensor, "P 1"]:
        """J̃ᵀα: the displacement of the weights that gives the posterior mean."""
        return self.problem.operators.whitened.rmatmat(self.alpha.unsqueeze(1))

    def mean(self, x: Tensor) -> Tensor:
        """The mean by a product with J(x). Cost: 2·M·C·P operations; the first call also 2·N·C·P."""
        mean_at, at = self.problem.answers.mean_at, self.problem.operators.at
        return mean_chunks(self.problem, x, lambda part: mean_at(part) + at(part).matmat(self._weights)[:, 0])

    @out_of_memory("pass fewer points of x at a time")
    def predict(self, x: Tensor, *, noise_var: float | Tensor | None = None) -> Prediction:
        """Mean and variance at x, equations (1) and (2); lower = variance = upper.

        Cost: M·C·(N·C)² operations; memory one block of 256 MB besides the training factors.
        """
        points = rows_per_chunk(CROSS_COPIES * 8 * len(self.alpha) * self.problem.outputs, budget=256 * 2**20)
        return predict_chunks(self.problem, x, self._predict, noise_var, points)

    def _predict(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rows = self.problem.operators.at(x)
        cross = self.problem.operators.cross(rows)
        explained = self.cholesky.half_solve(cross.T).square().sum(dim=0)
        variance = (rows.diag() - explained).clamp_min(0)
        return self.problem.answers.mean_at(x) + cross @ self.alpha, variance, variance, variance

    @out_of_memory("pass fewer points of x at a time")
    def covariance(self, x: Tensor) -> Float[Tensor, "MC MC"]:
        """K(x′,x′) − K(x′,x) A⁻¹ K(x,x′). Memory: 2·(M·C)² + 2·M·C·N·C numbers."""
        operators, answers = self.problem.operators, self.problem.answers
        rows = operators.at(answers.checked(x))
        half = self.cholesky.half_solve(operators.cross(rows).T)
        covariance = rows.gram() - half.T @ half
        covariance.diagonal().clamp_min_(0)
        return answers.cast(covariance)

    def joint(self, x: Float[Tensor, "B q *point"]) -> tuple[Float[Tensor, "B q C"], Float[Tensor, "B qC qC"]]:
        """Mean and joint epistemic covariance of B groups of q points, separately per group; differentiable in x.

        Cost: B·q·C·(N·C)² operations, and kernel tiles of 128 points, from which only the groups' blocks are used.
        Memory: a block of 256 MB and the result, never the (B·q·C)² matrix.
        """
        problem, (q, C) = self.problem, (x.shape[1], self.problem.outputs)
        points = rows_per_chunk(CROSS_COPIES * 8 * len(self.alpha) * C, budget=256 * 2**20) if q * C == 1 else TILE_POINTS
        means, covariances = [], []
        for part in x.split(max(1, points // q)):
            flat = problem.answers.checked(part.flatten(0, 1))
            rows = problem.operators.at(flat)
            cross = problem.operators.cross(rows)
            means.append(problem.answers.mean_at(flat) + cross @ self.alpha)
            half = self.cholesky.half_solve(cross.T).T.unflatten(0, (len(part), q * C))
            if q * C == 1:
                prior = rows.diag().view(-1, 1, 1)
            else:
                prior = rows.gram().view(len(part), q * C, len(part), q * C).diagonal(dim1=0, dim2=2).movedim(-1, 0)
            covariance = prior - half @ half.mT
            covariance.diagonal(dim1=1, dim2=2).clamp_min_(0)
            covariances.append(covariance)
        mean = torch.cat(means).unflatten(0, (len(x), q, C))
        return mean.to(problem.answers.dtype), torch.cat(covariances).to(problem.answers.dtype)

    @out_of_memory("draw fewer functions at a time (count)")
    def sample(self, count: int, *, generator: torch.Generator | None = None) -> FunctionSample:
        """Exact draws. Cost per draw: 4·N·C·P operations and one solve with the factor; memory (P + N·C)·count numbers."""
        check_count(count, "count", 1)
        operator, r = self.problem.operators.whitened, self.problem.data.whitened_residual.unsqueeze(1)
        rows, parameters = operator.shape
        weights, noise = operator.normal(parameters, count, generator), operator.normal(rows, count, generator)
        for z, e in zip(weights.split(DRAWS_PER_BLOCK, dim=1), noise.split(DRAWS_PER_BLOCK, dim=1), strict=True):
            z += operator.rmatmat(self.cholesky.solve(r - operator.matmat(z) - e))
        return FunctionSample(self.problem, weights)

    def update(
        self,
        x: UserData,
        y: Tensor | None = None,
        *,
        noise_var: float | Tensor | None = None,
        generator: torch.Generator | None = None,
        progress: bool = False,
    ) -> "ExactPosterior":
        """The posterior with more data, by new rows of the Cholesky factor; both posteriors share the old rows.

        Cost for m points: (N·C)²·(m·C + 2) operations, and m·C·(N·C) numbers written. When a quarter of all rows came by
        updates, they are merged into one matrix, which copies (N·C)² numbers. Memory: 2·m·C·(N·C) more numbers; twice
        (N·C)² during the merge.

        Appending rows is stable, so errors do not accumulate. Each update measures the residuals of the new rows and of one
        old point (a different one each time), and of all rows after a merge. If a residual is too large for a
        stable factorisation, everything is factorised again; see `backward_error` and `refactored`. The answer stays exact
        for any number of points. A ValueError reports that the factor no longer fits in memory: use :class:`LowRank` then.
        """
        whole, new = extend_problem(self.problem, x, y, noise_var)
        cholesky, alpha, error, again = add_rows(self.cholesky, self.problem, new, whole)
        return ExactPosterior(whole, cholesky, alpha, error, self.refactored + again)

    def state(self) -> State:
        """Return all data of the posterior except the network."""
        cholesky = self.cholesky
        left, corner = cholesky.rows
        rows = {"left": left, "corner": corner.tril(), "room": cholesky.room.size} if cholesky.count else {}
        return problem_state(self.problem) | State.of(
            factor=cholesky.base, **rows, later=cholesky.count, largest=cholesky.largest, jitter=cholesky.jitter,
            alpha=self.alpha, backward_error=self.backward_error, refactored=self.refactored,
        )  # fmt: skip

    @classmethod
    def from_state(cls, state: State, module: nn.Module, prior_mean: MeanFunction | None) -> "ExactPosterior":
        """Rebuild the posterior; pass `prior_mean` again if it was a function."""
        problem = restore_problem(state, module, prior_mean)
        dtype = problem.network.dtype
        later = state.fact("later", int)
        state.sizes.update(R=later, B=len(problem.data.residual) - later)
        base = state.tensor("factor", "B B", dtype)
        cholesky = GrowingCholesky.whole(base, state.fact("largest", float), state.fact("jitter", float))
        if later:
            left, corner = state.tensor("left", "R B", dtype), state.tensor("corner", "R R", dtype)
            size = state.fact("room", int)
            if not later <= size <= roomier(later):
                raise ValueError(f"'room' must be from {later} to {roomier(later)} rows, got {size}")
            cholesky = cholesky.with_rows(left, corner, size)
        alpha = state.tensor("alpha", "NC", dtype)
        return cls(problem, cholesky, alpha, state.fact("backward_error", float), state.fact("refactored", int))
