"""The exact posterior."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp._system.check_options import check_count
from ntkgp._system.memory import out_of_memory, rows_per_chunk
from ntkgp._system.types import MeanFunction
from ntkgp.posterior.exact.form import Form
from ntkgp.posterior.exact.kernel_form import KernelForm
from ntkgp.posterior.exact.outputs_form import OutputsForm
from ntkgp.posterior.exact.weight_form import WeightForm
from ntkgp.posterior.interface import Posterior, why_of
from ntkgp.posterior.prediction import Prediction
from ntkgp.posterior.queries import mean_chunks, predict_chunks
from ntkgp.posterior.samples import FunctionSample
from ntkgp.posterior.sharpening import check_sharpening
from ntkgp.problem.extend import extend_problem
from ntkgp.problem.problem import Problem
from ntkgp.problem.source import UserData
from ntkgp.problem.stored import problem_state, restore_problem
from ntkgp.storage.state import State

SIDES = ("kernel", "weights")
BLOCK_BYTES = 256 * 2**20  # working memory of a query, besides the factor
TILE_POINTS = 128  # points per kernel tile in `joint`: large enough for few calls, small enough to discard little


@dataclass(frozen=True, repr=False)
class ExactPosterior(Posterior):
    """The exact posterior, factorised over the observations or over the weights, whichever is smaller.

    Attributes:
        form: the factorised matrix: :class:`KernelForm` or :class:`WeightForm`.
    """

    problem: Problem
    form: Form
    why: str = ""

    kind = "exact"

    @property
    def method_name(self) -> str:
        """The method and its size, in words."""
        over = "observations" if self.form.side == "kernel" else "weights"
        return f"exact over the {over} ({self.form.size:,} × {self.form.size:,} matrix)"

    @property
    def std_error(self) -> float:
        """0: the standard deviation is exact, to rounding."""
        return 0.0

    @property
    def side(self) -> str:
        """Which matrix was factorised: "kernel", N·C × N·C, or "weights", P × P."""
        return self.form.side

    @property
    def backward_error(self) -> float:
        """The relative change of the factorised matrix that explains the residual of the mean, when it was last computed."""
        return self.form.backward_error

    @property
    def refactored(self) -> int:
        """How often updates found this error too large, or the matrix not positive definite, and factorised again."""
        return self.form.refactored

    @property
    def log_marginal_likelihood(self) -> float:
        """Log p(y) = −½ rᵀA⁻¹r − ½ log det A − (N·C/2) log 2π."""
        data = self.problem.data
        log_det = self.form.log_determinant + 2 * data.log_noise
        return -0.5 * (self.form.misfit + log_det + data.rows * math.log(2 * math.pi))

    def leave_one_out(self) -> tuple[Tensor, Tensor]:
        """Predict each training target from all others; return errors in predictive standard deviations, and these deviations.

        Uses the diagonal of A⁻¹ and needs no refit: the variance of an observation given the others is 1/[A⁻¹]_ii. Cost:
        (N·C)³ operations over the kernel, N·C·P² over the weights; memory one block of columns. With a group, each rank gets
        its own points.
        """
        errors, scale = self.form.leave_one_out()
        shaped = self.problem.answers.shaped
        return shaped(errors), shaped(scale * self.problem.data.noise_std)

    def mean(self, x: Tensor) -> Tensor:
        """The mean by a product with J(x). Cost: 2·M·C·P operations; over the kernel, the first call also 2·N·C·P.

        For an infinite network it is a product with the kernel, N values per point.
        """
        mean_at = self.problem.answers.mean_at
        return mean_chunks(self.problem, x, lambda part: mean_at(part) + self.form.change(part))

    def _points(self) -> int:
        """Query points whose block fits the working memory."""
        return rows_per_chunk(self.form.numbers_per_row * 8 * self.problem.outputs, budget=BLOCK_BYTES)

    @out_of_memory("pass fewer points of x at a time")
    def predict(self, x: Tensor, *, noise_var: float | Tensor | None = None) -> Prediction:
        """Mean and variance at x, equations (1) and (2); lower = variance = upper.

        Cost: M·C·n² operations for a factorised n × n matrix; memory one block of 256 MB besides the factor.
        """
        return predict_chunks(self.problem, x, self._predict, noise_var, self._points())

    def _predict(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        change, blocks = self.form.blocks(x, len(x) * self.problem.outputs)
        variance = blocks.flatten()
        return self.problem.answers.mean_at(x) + change, variance, variance, variance

    def sharpen(
        self,
        x: Tensor,
        *,
        rtol: float = 0.01,
        noise_var: float | Tensor | None = None,
        max_iterations: int = 1000,
        progress: bool = False,
    ) -> Prediction:
        """The answer of :meth:`predict`, which is exact."""
        check_sharpening(rtol, max_iterations)
        return self.predict(x, noise_var=noise_var)

    @out_of_memory("pass fewer points of x at a time")
    def covariance(self, x: Tensor) -> Float[Tensor, "MC MC"]:
        """K(x′,x′) − K(x′,x) A⁻¹ K(x,x′). Memory: 2·(M·C)² + 4·M·C·n numbers for a factorised n × n matrix."""
        return self.problem.answers.cast(self.form.blocks(self.problem.answers.checked(x), 1)[1][0])

    def joint(self, x: Float[Tensor, "B q *point"]) -> tuple[Float[Tensor, "B q C"], Float[Tensor, "B qC qC"]]:
        """Mean and joint epistemic covariance of B groups of q points, separately per group; differentiable in x.

        Cost: B·q·C·n² operations for a factorised n × n matrix, and kernel tiles of 128 points, from which only the groups'
        blocks are used. Memory: a block of 256 MB and the result, never the (B·q·C)² matrix.
        """
        problem, (q, C) = self.problem, (x.shape[1], self.problem.outputs)
        points = self._points() if q * C == 1 else TILE_POINTS
        means, covariances = [], []
        for part in x.split(max(1, points // q)):
            flat = problem.answers.checked(part.flatten(0, 1))
            change, blocks = self.form.blocks(flat, len(part))
            means.append(problem.answers.mean_at(flat) + change)
            covariances.append(blocks)
        mean = torch.cat(means).unflatten(0, (len(x), q, C))
        return mean.to(problem.answers.dtype), torch.cat(covariances).to(problem.answers.dtype)

    @out_of_memory("draw fewer functions at a time (count)")
    def sample(self, count: int, *, generator: torch.Generator | None = None) -> FunctionSample:
        """Exact draws. Cost per draw: over the kernel 4·N·C·P operations and one solve, over the weights P².

        Memory: (P + N·C)·count numbers over the kernel, 2·P·count over the weights. A network of infinite width has no weights
        to draw: each function then starts from the prior of its own random network of width 512. Covariances over many such
        functions are off by about 1/512 of the prior; :meth:`covariance` has none of this error.
        """
        check_count(count, "count", 1)
        return self.form.sample(count, generator)

    @out_of_memory("update with fewer points at a time")
    def update(
        self,
        x: UserData,
        y: Tensor | None = None,
        *,
        noise_var: float | Tensor | None = None,
        generator: torch.Generator | None = None,
        progress: bool = False,
    ) -> "ExactPosterior":
        """The posterior with more data, by new rows of the factor; both posteriors share the old rows.

        Cost for m points and a factorised n × n matrix: n²·(m·C + 2) operations, and m·C·n numbers written. When a quarter
        of all rows came by updates, they are merged into one matrix: over the kernel this copies (N·C)² numbers, over the
        weights it takes another factorisation. Memory: 2·m·C·n more numbers; one more matrix during the merge.

        Appending rows is stable, so errors do not accumulate. Each update measures residuals (over the kernel those of the new
        rows and of one old point, a different one each time; all rows after a merge). If a residual is too large for a
        stable factorisation, everything is factorised again; see `backward_error` and `refactored`. The answer stays exact
        for any number of points. A ValueError reports that the factor no longer fits in memory: use :class:`LowRank` then.
        """
        whole, new = extend_problem(self.problem, x, y, noise_var)
        form = self.form.updated(new, whole)
        return ExactPosterior(form.problem, form, self.why)

    def state(self) -> State:
        """Return all data of the posterior except the network."""
        return problem_state(self.problem) | self.form.state() | State(facts={"side": self.form.side, "why": self.why})

    @classmethod
    def from_state(cls, state: State, module: nn.Module, prior_mean: MeanFunction | None) -> "ExactPosterior":
        """Rebuild the posterior; pass `prior_mean` again if it was a function."""
        problem = restore_problem(state, module, prior_mean)
        side = "kernel" if state.older else state.fact("side", str)
        if side not in SIDES:
            raise ValueError(f"'side' must be one of {SIDES}, got {side!r}")
        form = (WeightForm if side == "weights" else kernel_form_of(problem)).from_state(state, problem)
        return cls(form.problem, form, why_of(state))


def kernel_form_of(problem: Problem) -> type[KernelForm] | type[OutputsForm]:
    """How a problem is factorised over the observations: several outputs of an infinite network share one kernel."""
    return OutputsForm if problem.outputs > 1 and not problem.operators.has_weights else KernelForm
