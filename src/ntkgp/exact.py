"""The analytic posterior, equations (1) and (2) of the paper: dense kernel, Cholesky."""

import math
import warnings
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp._checks import check_count
from ntkgp._room import roomier
from ntkgp._types import MeanFunction, NumericalWarning
from ntkgp.archive import State
from ntkgp.linalg.growing_cholesky import GrowingCholesky
from ntkgp.more_data import Data, with_more
from ntkgp.posterior import FunctionSample, Posterior, Prediction
from ntkgp.problem import Problem
from ntkgp.stored_problem import problem_state, stored_problem
from ntkgp.tangent.memory import by_halves, free_bytes, out_of_memory, rows_per_chunk

COPIES = 5  # of the kernel between queries and training points: raw, whitened, transposed, solved with, squared
BLOCK = 128  # points whose kernel is formed together in `joint`: few calls, little thrown away
COLUMNS = 1024  # functions drawn together
GOLDEN = 0.6180339887498949  # its multiples visit all points evenly
OFF, BLUR = 0.1, 0.05  # what rounding may move without a word: the mean, in standard deviations, and the variance, relatively
TRUSTED = 100  # times the rounding unit: a backward error above it is not that of a stable factorisation


@dataclass(frozen=True)
class Exact:
    """Dense kernel and Cholesky: the exact posterior, for N·C up to some ten thousand.

    Cost: (N·C)³/3 operations and 2·(N·C)² numbers. Computes in float64, since λ₁/σ² often exceeds what float32 carries, and
    answers in the dtype of y.

    Args:
        dtype: the dtype to compute in; float32 only for modules or devices that cannot do float64.

    Example:
        >>> import torch, ntkgp
        >>> g = torch.Generator().manual_seed(0)
        >>> net = ntkgp.mlp(1, width=64, generator=g)
        >>> x = torch.linspace(-1, 1, 5).unsqueeze(1)
        >>> posterior = ntkgp.fit(net, x, torch.sin(3 * x[:, 0]), noise_var=0.01, method=ntkgp.Exact())
        >>> posterior.predict(torch.tensor([[0.0], [5.0]])).std.round(decimals=2)
        tensor([ 0.1000, 11.3800])
    """

    dtype: torch.dtype = torch.float64

    def fit(self, problem: Problem) -> "ExactPosterior":
        """Factorise K(x, x) + σ²I, once."""
        gram = problem.whitened.gram
        assert gram is not None
        _check_room(problem, 3)
        matrix = gram()
        matrix.diagonal().add_(1.0)
        cholesky = GrowingCholesky.of(matrix)
        r = problem.whitened_residual
        alpha = cholesky.solve(r.unsqueeze(1)).squeeze(1)
        surprise = matrix @ alpha + cholesky.jitter * alpha - r
        # Where something was added to the diagonal, a warning has said so, and that is more than rounding.
        _warn_if_off(surprise, r, 0.0 if cholesky.jitter else float(matrix.diagonal().sum()))
        return ExactPosterior(problem, cholesky, alpha, cholesky.backward_error(surprise, alpha, r))


def _warn_if_off(surprise: Float[Tensor, "some"], r: Float[Tensor, "NC"], trace: float = 0.0) -> None:
    """Say so when rounding moves the answer by a visible part of its uncertainty.

    With ρ = Ãα − r̃ the mean at x is off by k̃ᵀÃ⁻¹ρ, at most ‖ρ‖ posterior standard deviations, since ‖Ã⁻¹k̃‖² is not above the
    variance at x; `surprise` are some or all of the entries of ρ. What the rounding of the targets themselves moves is not
    spoken of. Rounding in Ã acts as more or less noise, by a relative amount of its trace times the rounding unit.
    """
    eps = torch.finfo(surprise.dtype).eps
    off, given = float(surprise.norm()) * math.sqrt(len(r) / len(surprise)), TRUSTED * eps * float(r.norm())
    blur = trace * eps
    if off > max(OFF, given) or blur > BLUR:
        warnings.warn(
            f"the noise is so small beside the kernel that rounding in {surprise.dtype} may move the mean by some {off:.1g} "
            f"posterior standard deviations, and the variance by {min(1.0, blur):.0%}; raise noise_var, or use "
            "method=ntkgp.LowRank(...), which solves in weight space",
            NumericalWarning,
            stacklevel=4,
        )


def _check_room(problem: Problem, matrices: int) -> None:
    """The factor, the matrix or another one beside it, and what the factorisation works in."""
    needed = matrices * problem.residual.element_size() * len(problem.residual) ** 2
    if needed > (free := free_bytes(problem.network.device)):
        raise ValueError(
            f"the exact posterior of {problem.points} points needs {needed / 2**30:.1f} GiB more, and {free / 2**30:.1f} are "
            "free; fit all data with method=ntkgp.LowRank(...), whose update goes on from there"
        )


@dataclass(frozen=True)
class ExactPosterior(Posterior):
    """The exact posterior: Ã = I + K̃ factorised, α = Ã⁻¹ r̃.

    Attributes:
        backward_error: measured when α was last computed: the relative change of Ã that explains Ãα − r̃.
        refactored: how often updates found it too large, or Ã not positive definite, and factorised anew.
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
        r, std = self.problem.whitened_residual, self.problem.noise_std
        log_det = 2 * self.cholesky.diagonal().log().sum() + 2 * std.log().sum()
        return float(-0.5 * (r @ self.alpha + log_det + len(r) * torch.log(torch.tensor(2 * torch.pi, dtype=r.dtype))))

    def leave_one_out(self) -> tuple[Tensor, Tensor]:
        """Each training target predicted from all the others: its error in predictive standard deviations, and those.

        From the diagonal of A⁻¹, without refitting: the variance of an observation given the others is its reciprocal. Memory:
        (N·C)² numbers.
        """
        scale = torch.cholesky_inverse(self.factor).diagonal().rsqrt()
        return self.problem.shaped(self.alpha * scale), self.problem.shaped(scale * self.problem.noise_std)

    @cached_property
    def _weights(self) -> Float[Tensor, "P 1"]:
        """J̃ᵀα: the mean's displacement of the weights."""
        return self.problem.whitened.rmatmat(self.alpha.unsqueeze(1))

    def mean(self, x: Tensor) -> Tensor:
        """The mean by a product with J(x). Cost: 2·M·C·P operations, and as many for each training point the first time."""
        problem, x = self.problem, self.problem.checked(x)
        parts = [problem.mean_at(part) + problem.tangent.at(part).matmat(self._weights)[:, 0] for part in x.split(16384)]
        return problem.shaped(torch.cat(parts))

    @out_of_memory("ask about fewer points of x at a time")
    def predict(self, x: Tensor, *, noise_var: float | Tensor | None = None) -> Prediction:
        """Mean and variance at x, equations (1) and (2); lower = variance = upper.

        Cost: M·C·(N·C)² operations; memory of a block of 256 MB beside the training factors.
        """
        problem, x = self.problem, self.problem.checked(x)
        rows = rows_per_chunk(COPIES * 8 * len(self.alpha) * problem.outputs, budget=256 * 2**20)
        means, variances = [], []
        for part in x.split(rows):
            for mean, variance in by_halves(lambda some, part=part: self._predict(part[some]), len(part)):
                means.append(mean)
                variances.append(variance)
        variance = problem.shaped(torch.cat(variances))
        noise = problem.noise_at(x, noise_var)
        return Prediction(
            mean=problem.shaped(torch.cat(means)),
            variance=variance,
            lower=variance,
            upper=variance,
            noise_var=None if noise is None else problem.shaped(noise.flatten()),
        )

    def _predict(self, x: Tensor) -> tuple[Float[Tensor, "MC"], Float[Tensor, "MC"]]:
        jacobian = self.problem.tangent.at(x)
        cross = jacobian.kernel(self.problem.jacobian) / self.problem.noise_std
        explained = self.cholesky.half_solve(cross.T).square().sum(dim=0)
        return self.problem.mean_at(x) + cross @ self.alpha, (jacobian.diag() - explained).clamp_min(0)

    @out_of_memory("ask about fewer points of x at a time")
    def covariance(self, x: Tensor) -> Float[Tensor, "MC MC"]:
        """K(x′,x′) − K(x′,x) A⁻¹ K(x,x′). Memory: 2·(M·C)² + 2·M·C·N·C numbers."""
        problem, x = self.problem, self.problem.checked(x)
        jacobian = problem.tangent.at(x)
        cross = jacobian.kernel(problem.jacobian) / problem.noise_std
        half = self.cholesky.half_solve(cross.T)
        covariance = jacobian.kernel() - half.T @ half
        covariance.diagonal().clamp_min_(0)
        return problem.answer(covariance)

    def joint(self, x: Float[Tensor, "B q *point"]) -> tuple[Float[Tensor, "B q C"], Float[Tensor, "B qC qC"]]:
        """Mean and joint epistemic covariance of B groups of q points, each group by itself; differentiable in x.

        Cost: B·q·C·(N·C)² operations, and kernels of tiles of 128 points, of which the groups' blocks are kept. Memory: a block
        of 256 MB and the result, never the (B·q·C)² matrix.
        """
        problem, (q, C) = self.problem, (x.shape[1], self.problem.outputs)
        points = rows_per_chunk(COPIES * 8 * len(self.alpha) * C, budget=256 * 2**20) if q * C == 1 else BLOCK
        means, covariances = [], []
        for part in x.split(max(1, points // q)):
            flat = problem.checked(part.flatten(0, 1))
            jacobian = problem.tangent.at(flat)
            cross = jacobian.kernel(problem.jacobian) / problem.noise_std
            means.append(problem.mean_at(flat) + cross @ self.alpha)
            half = self.cholesky.half_solve(cross.T).T.unflatten(0, (len(part), q * C))
            if q * C == 1:
                prior = jacobian.diag().view(-1, 1, 1)
            else:
                prior = jacobian.kernel().view(len(part), q * C, len(part), q * C).diagonal(dim1=0, dim2=2).movedim(-1, 0)
            covariance = prior - half @ half.mT
            covariance.diagonal(dim1=1, dim2=2).clamp_min_(0)
            covariances.append(covariance)
        mean = torch.cat(means).unflatten(0, (len(x), q, C))
        return mean.to(problem.user_dtype), torch.cat(covariances).to(problem.user_dtype)

    @out_of_memory("draw fewer functions at a time, count")
    def sample(self, count: int, *, generator: torch.Generator | None = None) -> FunctionSample:
        """Exact draws. Cost: 4·N·C·P operations and a solve with the factor a draw; memory (P + N·C)·count numbers."""
        check_count(count, "count", 1)
        operator, r = self.problem.whitened, self.problem.whitened_residual.unsqueeze(1)
        rows, parameters = operator.shape
        weights, noise = operator.normal(parameters, count, generator), operator.normal(rows, count, generator)
        for z, e in zip(weights.split(COLUMNS, dim=1), noise.split(COLUMNS, dim=1), strict=True):
            z += operator.rmatmat(self.cholesky.solve(r - operator.matmat(z) - e))
        return FunctionSample(self.problem, weights)

    def update(
        self,
        x: Data,
        y: Tensor | None = None,
        *,
        noise_var: float | Tensor | None = None,
        generator: torch.Generator | None = None,
        progress: bool = False,
    ) -> "ExactPosterior":
        """The posterior with more data, by new rows of the Cholesky factor; what this one holds is shared, not copied.

        Cost for m points: (N·C)²·(m·C + 2) operations, and m·C·(N·C) numbers written; now and then, when a quarter of all has
        come later, (N·C)² numbers are moved. Memory: 2·m·C·(N·C) numbers more, twice (N·C)² while the factor is moved.

        Growing by rows is stable, so nothing drifts. The residuals of the new rows and of an old point, another one each time,
        are measured, and those of all rows when the factor is moved; should they ever not be those of a stable factorisation,
        all is factorised anew: `backward_error` and `refactored` tell. The answer stays exact however many points there are; a
        ValueError says when the factor no longer fits in memory, where :class:`LowRank` goes on.
        """
        whole, new = with_more(self.problem, x, y, noise_var)
        _check_room(whole, 2)
        cross = new.jacobian.kernel(self.problem.jacobian) / (new.noise_std.unsqueeze(1) * self.problem.noise_std)
        assert new.whitened.gram is not None
        block = new.whitened.gram()
        block.diagonal().add_(1.0)
        cholesky = self.cholesky.extended(cross, block)
        if cholesky is None:
            return self._anew(whole)
        r = whole.whitened_residual
        alpha = cholesky.solve(r.unsqueeze(1)).squeeze(1)
        if cholesky.count == 0:  # in one piece again: time to look at all rows
            rows, operator = slice(None), whole.whitened
            product = operator.matmat(operator.rmatmat(alpha.unsqueeze(1))).squeeze(1) + alpha
        else:  # the new rows, and those of an old point, which would show what is wrong with the others
            turn = int(whole.points * GOLDEN % 1 * self.problem.points)
            rows = [*range(turn * whole.outputs, (turn + 1) * whole.outputs), *range(len(self.alpha), len(r))]
            old = whole.tangent.at(whole.x[turn : turn + 1]).kernel(whole.jacobian) / whole.noise_std
            old = old @ alpha / whole.noise_std[rows[: len(old)]] + alpha[rows[: len(old)]]
            product = torch.cat([old, cross @ alpha[: len(self.alpha)] + block @ alpha[len(self.alpha) :]])
        surprise = product + cholesky.jitter * alpha[rows] - r[rows]
        error = cholesky.backward_error(surprise, alpha, r)
        if not error <= TRUSTED * torch.finfo(alpha.dtype).eps:
            return self._anew(whole)
        _warn_if_off(surprise, r)
        return ExactPosterior(whole, cholesky, alpha, error, self.refactored)

    def _anew(self, problem: Problem) -> "ExactPosterior":
        return replace(Exact(problem.network.dtype).fit(problem), refactored=self.refactored + 1)

    def state(self) -> State:
        """All that the posterior is made of, less the network."""
        cholesky = self.cholesky
        left, corner = cholesky.rows
        rows = {"left": left, "corner": corner.tril(), "room": cholesky.room.size} if cholesky.count else {}
        return problem_state(self.problem) | State.of(
            factor=cholesky.base, **rows, later=cholesky.count, largest=cholesky.largest, jitter=cholesky.jitter,
            alpha=self.alpha, backward_error=self.backward_error, refactored=self.refactored,
        )  # fmt: skip

    @classmethod
    def from_state(cls, state: State, module: nn.Module, prior_mean: MeanFunction | None) -> "ExactPosterior":
        """The posterior again; prior_mean is the function, where it was one."""
        problem = stored_problem(state, module, prior_mean)
        dtype = problem.network.dtype
        later = state.fact("later", int)
        state.sizes.update(R=later, B=len(problem.residual) - later)
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
