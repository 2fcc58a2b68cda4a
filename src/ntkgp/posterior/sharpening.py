"""Certify the variance at a few points: solve for them alone, with bounds on both sides that hold for any approximate solution.

With g = J′ᵀ, H = G + I and any w, let r = g − Hw. Then ``v = gᵀH⁻¹g = gᵀw + wᵀr + rᵀH⁻¹r``, and rᵀH⁻¹r lies between 0 and both
‖r‖² and what the head leaves of it. So the bracket is as wide as the solver's residual is long, whatever computed w.
"""

import warnings
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.check_options import check_count, check_positive
from ntkgp._system.errors import NumericalWarning
from ntkgp._system.memory import rows_per_chunk
from ntkgp.distributed.split_space import Split
from ntkgp.linalg.bracket import ROUNDINGS
from ntkgp.linalg.cgls import CGLS, NormalSystem, Solution
from ntkgp.linalg.head import Head
from ntkgp.posterior.prediction import Prediction
from ntkgp.posterior.queries import bracketed
from ntkgp.problem.problem import Problem

BLOCK_BYTES = 2**30  # memory for the vectors of queries that are solved together
MOST_COLUMNS = 256  # and how many these are at most: each step decomposes a matrix of as many rows and columns
VECTORS = 8  # vectors over the weights in memory per query
ROUNDS = 6  # how often the solver is asked for more, as the variance becomes known
MARGIN = 0.8  # part of the allowed width that the solver aims at


def check_sharpening(rtol: float, max_iterations: int) -> None:
    """Raise unless the options of ``sharpen`` make sense."""
    check_positive("sharpen", rtol=rtol)
    check_count(max_iterations, "max_iterations", 1)


@dataclass(frozen=True)
class Sharpening:
    """How the brackets of one posterior are narrowed.

    Cost: two products with G per step for all points together; 10 to 100 steps are typical. Memory: 8·P numbers per point and
    output solved together (1 GiB of them).
    """

    problem: Problem
    head: Head
    system: NormalSystem
    rtol: float
    max_iterations: int
    progress: bool = False

    def of(self, before: Prediction, x: Tensor) -> Prediction:
        """The prediction `before` at x with certified brackets of relative width `rtol`, or a warning of the width reached."""
        problem = self.problem
        x = problem.answers.checked(x)
        points = rows_per_chunk(VECTORS * 8 * problem.operators.parameters * problem.outputs, budget=BLOCK_BYTES)
        points = max(1, min(points, MOST_COLUMNS // problem.outputs))
        guesses = before.variance.detach().double().flatten().split(points * problem.outputs)
        parts = [self._certified(part, guess) for part, guess in zip(x.split(points), guesses, strict=True)]
        lower, upper = (torch.cat(column) for column in zip(*parts, strict=True))
        width = float(torch.where(upper > 0, 1 - lower / upper, 0.0).max())
        if width > self.rtol:
            warnings.warn(
                f"the bracket of some variance is {width:.2g} wide (relative to its upper bound) after at most "
                f"{self.max_iterations} iterations, rtol asks for {self.rtol:.2g}; raise max_iterations, rank or noise_var",
                NumericalWarning,
                stacklevel=4,
            )
        return replace(before, **bracketed(problem, (lower + upper) / 2, lower, upper), confidence=1.0)

    def _certified(self, x: Tensor, guess: Float[Tensor, "MC"]) -> tuple[Float[Tensor, "MC"], Float[Tensor, "MC"]]:
        """Certified bounds on the variances at a few points.

        How accurate a solution must be depends on the variance itself: the solver starts from `guess`, and goes on if the
        variance turns out to be smaller.
        """
        operators, head, system = self.problem.operators, self.head, self.system
        rows, space = operators.at(x), operators.space
        prior = rows.diag().double()
        g = rows.rmatmat(torch.eye(rows.shape[0], dtype=torch.float64, device=x.device))
        g = g[space.rows] if isinstance(space, Split) else g
        lower = head.bracket.lower(operators.features(rows, head.v), prior)
        upper = torch.maximum(head.upper(operators.features(rows, head.image), prior), lower)
        tiny = torch.finfo(prior.dtype).tiny
        solution: Solution | None = None
        used = 0
        for _ in range(ROUNDS):
            wide = upper - lower > self.rtol * upper
            if not space.agreed(bool(wide.any())) or used >= self.max_iterations:
                break
            about = torch.clamp(guess, lower, upper)
            # Columns that are done need no accuracy any more.
            asked = torch.where(wide, (MARGIN * self.rtol * about).clamp_min(tiny).sqrt(), torch.full_like(lower, torch.inf))
            solver = CGLS(max_iterations=self.max_iterations - used)
            solution = solver.solve(  # quiet: the width of the bracket says it better
                system, g, accuracy=asked, start=solution and solution.x, progress=self.progress, quiet=True
            )
            used += solution.iterations
            w = solution.x
            r = g - system.product(w) - w
            known = space.dots(g, w) + space.dots(w, r)
            # Rounding: of G by at most head.rounding, of J′ and of sums by ROUNDINGS units.
            size, norm = space.norms(w), prior.sqrt()
            off_g = ROUNDINGS * head.unit * norm
            off = head.rounding * size.square() + 2 * off_g * size
            left = torch.minimum(space.norms(r), head.error(r)) + head.rounding * size + off_g
            lower = torch.maximum(lower, known - off)
            upper = torch.maximum(torch.minimum(upper, known + off + left.square()), lower)
        return lower, upper
