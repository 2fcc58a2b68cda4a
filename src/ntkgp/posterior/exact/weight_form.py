"""The exact posterior over the weights: H = I + J̃ᵀJ̃ factorised. It needs the data for one sum only, so any number of points do.

``J′J′ᵀ − J′J̃ᵀ(J̃J̃ᵀ + I)⁻¹J̃J′ᵀ = J′H⁻¹J′ᵀ``: the same posterior as over the observations, and a sum of squares.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.memory import free_bytes
from ntkgp.linalg.cholesky import BLOCK, Cholesky
from ntkgp.linalg.growing_cholesky import GrowingCholesky
from ntkgp.linalg.growing_normal import GrowingNormal
from ntkgp.linalg.space import normal_rows
from ntkgp.posterior.exact.form import Form
from ntkgp.posterior.exact.growing_state import growing_state, restore_growing
from ntkgp.posterior.exact.rounding import STABLE_ERROR, rounding_unit, warn_if_rounded
from ntkgp.posterior.method import Run
from ntkgp.posterior.samples import LinearSample
from ntkgp.problem.extend import check_updatable
from ntkgp.problem.problem import Problem
from ntkgp.storage.stages import Stages
from ntkgp.storage.state import State

ROW_COPIES = 4  # copies of a row of J(x′) in memory: from the factors, in flat order, solved, squared
SUM_BYTES = 8  # of a number of the normal matrix while it is summed


@dataclass(frozen=True)
class WeightForm(Form):
    """H = I + J̃ᵀJ̃ factorised, Δ = H⁻¹J̃ᵀr̃."""

    problem: Problem
    normal: GrowingNormal
    sides: Float[Tensor, "P 1"]  # J̃ᵀr̃
    solution: Float[Tensor, "P 1"]  # Δ
    energy: float  # r̃ᵀÃ⁻¹r̃
    backward_error: float
    refactored: int = 0

    side = "weights"

    @classmethod
    def of(cls, problem: Problem, run: Run, identity: str) -> "WeightForm":
        """Sum G over all points and factorise H. Cost: N·C·P² + P³/3 operations; memory one P × P matrix.

        Args:
            problem: the problem; with a group, the points of this rank.
            run: with a checkpoint, the sum over the points is saved there. Each rank saves its own.
            identity: names the method in the checkpoint.
        """
        problem = _streaming(problem)
        operators, data = problem.operators, problem.data
        check_memory(problem, 1)
        c = operators.whitened.rmatmat(data.whitened_residual.unsqueeze(1))
        _ = data.log_noise  # of all ranks: a file that one rank writes needs it
        facts = {} if run.checkpoint is None else problem.identity | {"method": identity}
        stages = Stages(run.checkpoint, facts, run.generator, problem.network.device, run.group).alone()
        start = 0 if data.shard is None else data.shard.start
        bookmark = stages.bookmark(f"matrix-{start}-{len(data.noise_std) // data.outputs}")
        matrix = operators.normal_matrix(run.shows_progress, bookmark).to(c.dtype)
        matrix.diagonal().add_(1.0)
        found = Cholesky.of(matrix, run.shows_progress)
        form = cls._solved(problem, GrowingNormal.of(found), c, 0)
        # Jitter is larger than rounding and has a separate warning.
        trace = 0.0 if found.jitter else float(found.diagonal.sum())
        targets = data.total(data.whitened_residual.square().sum()) ** 0.5
        shift = float(torch.linalg.vector_norm(form.residual))
        warn_if_rounded(shift, targets, rounding_unit(c.dtype), trace=trace, unit=problem.network.unit, misfit=form.misfit**0.5)
        return form

    @classmethod
    def _solved(cls, problem: Problem, normal: GrowingNormal, sides: Tensor, refactored: int) -> "WeightForm":
        """Solve for the mean. r̃ᵀÃ⁻¹r̃ = ‖r̃ − J̃Δ‖² + ‖Δ‖² takes one more pass over the points."""
        weights, data = normal.solve(sides), problem.data
        left = data.whitened_residual - problem.operators.whitened.matmat(weights)[:, 0]
        misfit = data.total(left.square().sum()) + float(weights.square().sum())
        form = cls(problem, normal, sides, weights, misfit, 0.0, refactored)
        return replace(form, backward_error=_backward_error(form))

    @property
    def residual(self) -> Float[Tensor, "P 1"]:
        """ρ = HΔ − J̃ᵀr̃ after rounding. It moves the mean at x by at most ‖ρ‖ posterior standard deviations, because H⁻¹ ⪯ I."""
        return self.normal.product(self.weights) + self.jitter * self.weights - self.sides

    @property
    def weights(self) -> Float[Tensor, "P 1"]:
        """Δ."""
        return self.solution

    @property
    def misfit(self) -> float:
        """r̃ᵀÃ⁻¹r̃."""
        return self.energy

    @property
    def size(self) -> int:
        """P."""
        return len(self.normal)

    @property
    def jitter(self) -> float:
        """Added to the diagonal because of rounding."""
        return self.normal.base.jitter

    @property
    def log_determinant(self) -> float:
        """Log det H."""
        return self.normal.log_determinant

    @property
    def numbers_per_row(self) -> int:
        """Copies of a row of J(x′)."""
        return ROW_COPIES * (self.size + self.normal.count)

    def change(self, x: Tensor) -> Float[Tensor, "MC"]:
        """J′Δ."""
        return self.problem.operators.at(x).matmat(self.weights)[:, 0]

    def blocks(self, x: Tensor, groups: int) -> tuple[Float[Tensor, "MC"], Float[Tensor, "groups k k"]]:
        """J′Δ, and J′H⁻¹J′ᵀ per group. Cost: P² operations per row."""
        dense = self.problem.operators.at(x).dense()
        half = self.normal.half(dense.T).T.unflatten(0, (groups, -1))
        return dense @ self.weights[:, 0], half.square().sum(dim=2, keepdim=True) if half.shape[1] == 1 else half @ half.mT

    def sample(self, count: int, generator: torch.Generator | None) -> LinearSample:
        """Δ + L⁻ᵀξ: needs no data. Cost: P² operations per draw; memory 2·P·count numbers."""
        operators, shard, later = self.problem.operators, self.problem.data.shard, self.normal.count
        generator = generator if shard is None else shard.group.shared(generator)
        ground = operators.draw_weights(count, generator)
        noise = normal_rows(later, slice(0, later), count, generator, ground.dtype, ground.device)
        return LinearSample(self.problem, self.weights + self.normal.draw(ground, noise))

    def leave_one_out(self) -> tuple[Float[Tensor, "NC"], Float[Tensor, "NC"]]:
        """From α = r̃ − J̃Δ and [Ã⁻¹]_ii = 1 − j̃ᵢᵀH⁻¹j̃ᵢ, at least 1/(1 + ‖j̃ᵢ‖²). Cost: N·C·P² operations, one pass."""
        operators, data = self.problem.operators, self.problem.data
        alpha = data.whitened_residual - operators.whitened.matmat(self.weights)[:, 0]
        known, std = torch.zeros_like(alpha), data.noise_std.unsqueeze(1)
        if len(alpha):
            for here, rows in operators.jacobian.dense_blocks(alpha):
                known[here] = self.normal.half((rows / std[here]).T).square().sum(dim=0)
        least = 1 / (1 + operators.prior_variance / data.noise_std.square())
        scale = torch.maximum(1 - known, least.to(known.dtype)).rsqrt()
        return alpha * scale, scale

    def updated(self, new: Problem, whole: Problem) -> "WeightForm":
        """Add the new rows beside the factor, or, if there are many, to the matrix, which is then factorised again.

        The misfit grows by the surprise of the new observations: (r − JΔ)ᵀ(I + JH⁻¹Jᵀ)⁻¹(r − JΔ).
        """
        check_updatable(self.problem)
        whole, operators, r = _streaming(whole), new.operators, new.data.whitened_residual.unsqueeze(1)
        sides = self.sides + operators.whitened.rmatmat(r)
        if not self.normal.takes(len(r)):
            check_memory(whole, 2)
            normal = self.normal.merged(operators.normal_matrix().to(sides.dtype))
            surprise = self._misfit_added(normal, sides, new)
        else:
            rows = operators.jacobian.dense() / new.data.noise_std.unsqueeze(1)
            half, gap = self.normal.half(rows.T), r - rows @ self.weights
            block = half.T @ half
            block.diagonal().add_(1)
            surprise = float((gap * GrowingCholesky.of(Cholesky.of(block)).solve(gap)).sum())
            normal = self.normal.extended(rows)
        form = WeightForm(whole, normal, sides, normal.solve(sides), self.misfit + surprise, 0.0, self.refactored)
        error, unit = _backward_error(form), rounding_unit(sides.dtype)
        if not error <= STABLE_ERROR * unit and normal.count:
            check_memory(whole, 1)
            again = normal.merged()
            form = replace(form, normal=again, solution=again.solve(sides), refactored=self.refactored + 1)
            error = _backward_error(form)
        shift, targets = float(torch.linalg.vector_norm(form.residual)), float(whole.data.whitened_residual.norm())
        warn_if_rounded(shift, targets, unit)
        return replace(form, backward_error=error)

    def _misfit_added(self, normal: GrowingNormal, sides: Tensor, new: Problem) -> float:
        """By how much new observations raise r̃ᵀÃ⁻¹r̃: ‖r − JΔ₁‖² + (Δ₁ − Δ₀)ᵀH₀(Δ₁ − Δ₀), with Δ₁ the weights after them."""
        after = normal.solve(sides)
        left = new.data.whitened_residual.unsqueeze(1) - new.operators.whitened.matmat(after)
        step = after - self.weights
        return float(left.square().sum() + (step * self.normal.product(step)).sum())

    def state(self) -> State:
        """The factor with the matrix, the rows that were added, and the mean."""
        base, normal = self.normal.base, self.normal
        rows = growing_state(normal.corner, "corner.") | State.of(later_rows=normal.rows) if normal.count else State()
        return rows | State.of(
            square=base.square, diagonal=base.diagonal, jitter=base.jitter, later=normal.count, sides=self.sides,
            solution=self.solution, energy=self.energy, backward_error=self.backward_error, refactored=self.refactored,
        )  # fmt: skip

    @classmethod
    def from_state(cls, state: State, problem: Problem) -> "WeightForm":
        """Rebuild the form."""
        dtype, later = problem.network.dtype, state.fact("later", int)
        state.sizes.update(Q=problem.operators.parameters, R=later)  # Q: P in the order of the file
        square, diagonal = state.tensor("square", "Q Q", dtype), state.tensor("diagonal", "Q", dtype)
        normal = GrowingNormal.of(Cholesky(square, diagonal, state.fact("jitter", float)))
        if later:
            rows = state.tensor("later_rows", "R Q", dtype)
            normal = replace(normal, rows=rows, corner=restore_growing(state, later, dtype, "corner."))
        if "P" in state.orders:
            normal = normal.merged(order=state.orders["P"])
        sides, solution = state.tensor("sides", "P 1", dtype), state.tensor("solution", "P 1", dtype)
        return cls(
            problem, normal, sides, solution, state.fact("energy", float), state.fact("backward_error", float),
            state.fact("refactored", int),
        )  # fmt: skip


def check_memory(problem: Problem, matrices: int) -> None:
    """Raise if so many P × P matrices and a block of columns do not fit into free memory."""
    parameters, size = problem.operators.parameters, problem.data.residual.element_size()
    summed = 0 if size == SUM_BYTES else SUM_BYTES  # the sum over the points is in float64 in any case
    needed = parameters * (parameters * (size * matrices + summed) + size * BLOCK)
    if needed > (free := free_bytes(problem.network.device)):
        raise ValueError(
            f"the exact posterior over {parameters} parameters needs {needed / 2**30:.1f} GiB more memory, but only "
            f"{free / 2**30:.1f} GiB are free; use method=ntkgp.LowRank(...), or a network with fewer parameters"
        )


def _streaming(problem: Problem) -> Problem:
    """The same problem, without storing the layer factors of batches: a sum needs each of them once."""
    if problem.data.batches is None or not problem.operators.stores_batches:
        return problem
    return replace(problem, operators=replace(problem.operators, stores_batches=False))


def _backward_error(form: WeightForm) -> float:
    """The relative change of H that explains ρ."""
    size = (float(form.normal.base.diagonal.max()) + form.jitter) * float(form.weights.abs().sum())
    size += float(form.sides.abs().max())
    return float(form.residual.abs().max()) / max(size, torch.finfo(form.sides.dtype).tiny)
