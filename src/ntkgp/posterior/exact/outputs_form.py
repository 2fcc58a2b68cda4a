"""The exact posterior of an infinite network with several outputs: Θ ⊗ I_C, so one regression per output with one kernel."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp.posterior.exact.form import Form
from ntkgp.posterior.exact.growing_state import growing_state, restore_growing
from ntkgp.posterior.exact.kernel_form import KernelForm
from ntkgp.posterior.exact.kernel_sample import KernelSample, tangent_of
from ntkgp.problem.problem import Problem
from ntkgp.storage.state import State
from ntkgp.tangent.infinite.functions import PriorFunctions


@dataclass(frozen=True)
class OutputsForm(Form):
    """One factorised kernel for all outputs with the same noise. Rows of answers are point-major, as everywhere."""

    problem: Problem
    parts: tuple[KernelForm, ...]  # one per output; parts with the same noise share their factor

    side = "kernel"

    @classmethod
    def of(cls, problem: Problem, progress: bool = False) -> "OutputsForm":
        """Factorise. Cost: N³/3 operations per different noise; memory one N × N matrix for each."""
        parts: list[KernelForm] = []
        for part, twin in _with_twins(problem):
            parts.append(KernelForm.of(part, progress=progress) if twin is None else parts[twin].with_targets(part, check=True))
        return cls(problem, tuple(parts))

    @property
    def factors(self) -> dict[int, KernelForm]:
        """The first part with each factor."""
        return {id(part.cholesky): part for part in reversed(self.parts)}

    @property
    def backward_error(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The largest of the parts."""
        return max(part.backward_error for part in self.parts)

    @property
    def refactored(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The most of the parts."""
        return max(part.refactored for part in self.parts)

    @property
    def size(self) -> int:
        """N."""
        return self.parts[0].size

    @property
    def jitter(self) -> float:
        """The largest of the parts."""
        return max(part.jitter for part in self.parts)

    @property
    def weights(self) -> Float[Tensor, "P 1"]:
        """There are none: raises."""
        return self.parts[0].weights

    @property
    def log_determinant(self) -> float:
        """Log det Ã."""
        return sum(part.log_determinant for part in self.parts)

    @property
    def misfit(self) -> float:
        """r̃ᵀα."""
        return sum(part.misfit for part in self.parts)

    @property
    def numbers_per_row(self) -> int:
        """Copies of a row of the kernel between queries and observations."""
        return self.parts[0].numbers_per_row

    def change(self, x: Tensor) -> Float[Tensor, "MC"]:
        """K̃(x′, x)α of each output."""
        return torch.stack([part.change(x) for part in self.parts], dim=1).flatten()

    def blocks(self, x: Tensor, groups: int) -> tuple[Float[Tensor, "MC"], Float[Tensor, "groups k k"]]:
        """The same for each output; different outputs are independent. Cost: N² operations per point and different noise."""
        C, M = len(self.parts), len(x)
        whole = groups <= M  # groups of whole points; otherwise every row is a group
        found = {key: part.blocks(x, groups if whole else M)[1] for key, part in self.factors.items()}
        each = torch.stack([found[id(part.cholesky)] for part in self.parts], dim=1)  # groups (or M), C, q, q
        if not whole:
            return self.change(x), each.reshape(groups, 1, 1)
        return self.change(x), torch.diag_embed(each.movedim(1, -1)).transpose(2, 3).reshape(groups, M // groups * C, -1)

    def sample(self, count: int, generator: torch.Generator | None) -> KernelSample:
        """Matheron's rule, with functions of the prior drawn by finite networks."""
        problem, data, C = self.problem, self.problem.data, len(self.parts)
        prior, noise = PriorFunctions.draw(tangent_of(problem), count, generator), data.draw_noise(count, generator)
        left = data.whitened_residual.unsqueeze(1) - prior.at_many(data.x) / data.noise_std.unsqueeze(1) - noise
        solved = [part.cholesky.solve(left[c::C].contiguous()) for c, part in enumerate(self.parts)]
        return KernelSample(problem, prior, torch.stack(solved, dim=1).flatten(0, 1))

    def leave_one_out(self) -> tuple[Float[Tensor, "NC"], Float[Tensor, "NC"]]:
        """From the diagonal of Ã⁻¹, per output."""
        scales = {key: part.cholesky.inverse_diagonal.rsqrt() for key, part in self.factors.items()}
        scale = torch.stack([scales[id(part.cholesky)] for part in self.parts], dim=1).flatten()
        return torch.stack([part.alpha for part in self.parts], dim=1).flatten() * scale, scale

    def updated(self, new: Problem, whole: Problem) -> "OutputsForm":
        """Append the new rows to each factor; outputs whose noise was the same may part here."""
        parts: list[KernelForm] = []
        news = [part for part, _ in _with_twins(new)]
        for c, (part, twin) in enumerate(_with_twins(whole)):
            parts.append(self.parts[c].updated(news[c], part) if twin is None else parts[twin].with_targets(part, check=False))
        return OutputsForm(whole, tuple(parts))

    def state(self) -> State:
        """The factors, and α of each output."""
        keys = list(self.factors)
        found = State.of(
            factor_of_output=[keys.index(id(part.cholesky)) for part in self.parts],
            alphas=torch.stack([part.alpha for part in self.parts]),
            backward_errors=[part.backward_error for part in self.parts],
            refactored=[part.refactored for part in self.parts],
        )
        for k, part in enumerate(self.factors.values()):
            found = found | growing_state(part.cholesky, f"factor{k}.")
        return found

    @classmethod
    def from_state(cls, state: State, problem: Problem) -> "OutputsForm":
        """Rebuild the form."""
        which, C, dtype = state.fact("factor_of_output", list), problem.outputs, problem.network.dtype
        errors, again = state.fact("backward_errors", list), state.fact("refactored", list)
        if not (len(which) == len(errors) == len(again) == C and all(type(k) is int and 0 <= k < C for k in which)):
            raise ValueError(f"'factor_of_output' must name a factor for each of the {C} outputs, got {which!r}")
        size = problem.data.points
        factors = {k: restore_growing(state, size, dtype, f"factor{k}.") for k in sorted(set(which))}
        alphas = state.tensor("alphas", "C N", dtype)
        parts = [part for part, _ in _with_twins(problem)]
        made = zip(parts, which, alphas, errors, again, strict=True)
        return cls(problem, tuple(KernelForm(part, factors[k], alpha, float(e), int(n)) for part, k, alpha, e, n in made))


def _with_twins(problem: Problem) -> list[tuple[Problem, int | None]]:
    """The problem of each output alone, and the first output before it with the same noise at every point."""
    data, C, tangent = problem.data, problem.outputs, tangent_of(problem).single
    residuals, stds = data.residual.unflatten(0, (-1, C)), data.noise_std.unflatten(0, (-1, C))
    found: list[tuple[Problem, int | None]] = []
    for c in range(C):
        common = None if data.common_noise is None else data.common_noise[:, c : c + 1]
        mine = replace(data, residual=residuals[:, c].clone(), noise_std=stds[:, c].clone(), outputs=1, common_noise=common)
        twin = next((k for k in range(c) if torch.equal(stds[:, k], stds[:, c])), None)
        rows = found[0][0].operators.known_rows if found else tangent.at(data.x)
        found.append((problem.with_data(mine, tangent=tangent, known_rows=rows), twin))
    return found
