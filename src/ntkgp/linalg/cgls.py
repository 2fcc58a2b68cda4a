"""Ridge regression min ‖AΔ − t‖² + ‖Δ‖² over the weights Δ: conjugate gradients on (AᵀA + I)Δ = Aᵀt, many t at once.

On (AAᵀ + I)α = t the same method converges erratically when λ₁ is 10⁹; here the error falls monotonically in the energy norm.
SciPy's ``lsmr`` is no alternative: it takes one right-hand side and runs on the CPU only.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.check_options import check_count, check_positive
from ntkgp._system.errors import NumericalWarning
from ntkgp._system.progress import progress_bar
from ntkgp._system.resume import NOWHERE, Bookmark
from ntkgp.linalg.block_cg import Block
from ntkgp.linalg.space import WHOLE, Space

Product = Callable[[Tensor], Tensor]
DEFAULT_TOL = 1e-6  # relative to the preconditioned residual of Δ = 0
SMALLEST_TOL = 1e-10  # relative to the same residual: the data has no more digits
MEAN_ERROR = 0.05  # largest acceptable error of an answer, in posterior standard deviations
DRIFT = 0.5  # rough steps go on if their residual is off by less than this part of their next target
SLOW = 0.5  # a recomputed residual above this part of the one before it shows that rounding stops the steps


@dataclass(frozen=True)
class NormalSystem:
    """The system (G + I)Δ = c, given by products.

    Attributes:
        product: v ↦ G v.
        precondition: r ↦ about (G + I)⁻¹ r.
        rough: a cheaper, less precise v ↦ G v. If given, the steps use it; after every three digits the residual is recomputed
            with `product`, and the steps start anew from it if they have drifted away (iterative refinement).
        space: inner products of the columns, which may be split over processes.
        error: residuals r ↦ a bound on √(rᵀ(G + I)⁻¹r), which is the error of the mean at any point in posterior standard
            deviations at that point; None if no bound is known.
    """

    product: Product
    precondition: Product
    rough: Product | None = None
    space: Space = WHOLE
    error: Product | None = None


@dataclass(frozen=True)
class Solution:
    """Solutions of (G + I)Δ = c, one per column, and their accuracy."""

    x: Float[Tensor, "P S"]
    iterations: int
    accuracy: float  # the worst column's preconditioned residual, relative to its value at Δ = 0
    gradient_ratio: float  # the worst column's gradient norm, relative to its value at the start of the iteration
    converged: bool
    errors: Float[Tensor, "S"]  # bound on the error of each column in the energy norm

    def beside(self, other: "Solution") -> "Solution":
        """The columns of both."""
        return Solution(
            torch.cat([self.x, other.x], dim=1),
            max(self.iterations, other.iterations),
            max(self.accuracy, other.accuracy),
            max(self.gradient_ratio, other.gradient_ratio),
            self.converged and other.converged,
            torch.cat([self.errors, other.errors]),
        )


@dataclass(frozen=True)
class CGLS:
    """Conjugate gradients for least squares, all columns in one block; the head preconditions, and its closed form starts.

    Cost: one product with G per step, for all right-hand sides at once; memory 7·P·S numbers.

    Args:
        tol: stop when each preconditioned residual is below tol times its value at Δ = 0, checked with a recomputed residual.
            None takes the accuracy that the answer needs: draws stop when the std that they give cannot change visibly, the
            mean at 1e-6, or less if it could still move by 0.05 posterior standard deviations.
        max_iterations: stop after this many steps, with a warning that reports the accuracy.

    Example:
        >>> import torch
        >>> g = torch.diag(torch.tensor([100.0, 1.0]))
        >>> CGLS().solve(NormalSystem(lambda v: g @ v, precondition=lambda r: r / 2), torch.ones(2, 1)).x
        tensor([[0.0099],
                [0.5000]])
    """

    tol: float | None = None
    max_iterations: int = 2000

    def __post_init__(self) -> None:
        check_positive("CGLS", tol=self.tol)
        check_count(self.max_iterations, "max_iterations", 1)

    def solve(
        self,
        system: NormalSystem,
        c: Float[Tensor, "P S"],
        *,
        accuracy: Float[Tensor, "S"] | None = None,
        start: Float[Tensor, "P S"] | None = None,
        progress: bool = False,
        bookmark: Bookmark = NOWHERE,
        quiet: bool = False,
    ) -> Solution:
        """Solve (G + I)Δ = c for every column of c.

        Args:
            system: the products with G and with the preconditioner.
            c: right-hand sides.
            accuracy: the largest error of each column in the energy norm: by so many posterior standard deviations may answers
                move. NaN for a column that gives a mean, and None if all do. Not used if `tol` is given.
            start: initial guess, such as the solution of a similar problem; None takes the preconditioner applied to c.
            progress: show a progress bar.
            bookmark: saves the state of the iteration, and resumes from a saved one.
            quiet: do not warn if the accuracy is not reached; the solution says what was.
        """
        product, precondition, space = system.product, system.precondition, system.space
        step_product, digits = (product, 0.0) if system.rough is None else (system.rough, 1e-3)
        tiny, saved = torch.finfo(c.dtype).tiny, bookmark.load()
        if saved is None:
            guess = precondition(c)
            scale = space.dots(c, guess).sqrt().clamp_min(tiny)
            x, first, iterations = guess if start is None else start, scale.new_zeros(0), 0
        else:
            x, scale, first, iterations = saved["x"], saved["scale"], saved["first"], int(saved["iterations"])
        limit, block = _acceptable(scale, accuracy), None
        active, unit = torch.arange(len(scale), device=scale.device), scale
        goal, before = self._goal(scale, limit, accuracy), torch.full_like(scale, torch.inf)
        bar = progress_bar(
            progress, total=self.max_iterations, initial=iterations, desc="solving", leave=False, mininterval=0.5
        )
        while True:
            if saved is None:
                r = c - product(x) - x  # recomputed: the residual that the steps update drifts
                rest = space.dots(r, precondition(r)).clamp_min(0).sqrt()
                norm = space.norms(r)
                first = norm.clone() if not len(first) else first
                errors = rest if system.error is None else system.error(r)
                goal = self._tightened(goal, rest, errors, limit)
                done = rest <= goal
                if space.agreed(bool(done.all())) or iterations >= self.max_iterations:
                    break
                if space.agreed(bool((done | (rest > SLOW * before)).all())):  # rounding stops the steps
                    if digits == 0:
                        break
                    step_product, digits = product, 0.0
                before = rest
                if not bool(torch.isfinite(rest).all()):
                    raise ValueError(
                        "a residual of the solver is not finite because a product overflows; rescale x, y or noise_var"
                    )
                # Columns that are done need no smaller residual; when the steps start anew, they leave the block.
                target = torch.where(done, torch.finfo(rest.dtype).max, torch.maximum(goal / 2, digits * rest))
                if block is None or not digits or _drifted(system, block, unit, r, target, active):
                    active = (~done).nonzero()[:, 0]
                    unit = rest[active].clamp_min(tiny)  # all columns of the block count the same
                    block = Block.of(x[:, active] / unit, r[:, active] / unit, precondition, space)
                target = target[active]
            else:
                active, unit, target = saved["active"], saved["unit"], saved["target"]
                block = Block(saved["block"], saved["q"], saved["p"], saved["c"][0])
            saved = None
            while iterations < self.max_iterations and space.agreed(bool((block.residuals * unit > target).any())):
                block.step(step_product, precondition, space)
                iterations += 1
                tensors = {
                    "x": x, "scale": scale, "first": first, "active": active, "unit": unit, "target": target, "block": block.x,
                    "q": block.q, "p": block.p, "c": block.c.unsqueeze(0),
                }  # fmt: skip
                bookmark.save(partial(_state, tensors, iterations))
                bar.update()
                if progress:
                    bar.set_postfix(error=f"{float((block.residuals * unit / scale[active]).max()):.1e}")
            x = x.index_copy(1, active, block.x * unit)
        bar.close()
        accuracy_reached = float((rest / scale).max()) if len(scale) else 0.0
        converged = bool(done.all())
        if not converged and not quiet:
            asked = float((goal / scale).min())
            advice = (
                "raise max_iterations, or raise the rank for a better preconditioner"
                if iterations >= self.max_iterations
                else "rounding allows no more: raise noise_var, or the rank for a better preconditioner"
            )
            effect = "" if system.error is None else (
                f", so that answers may be off by {float(errors.max()):.1g} posterior standard deviations"
            )  # fmt: skip
            warnings.warn(
                f"the solver reached a relative accuracy of {accuracy_reached:.1e} after {iterations} iterations, not "
                f"{asked:.1e}{effect}; {advice}",
                NumericalWarning,
                stacklevel=2,
            )
        ratio = float((norm / first.clamp_min(tiny)).max()) if len(first) else 0.0
        return Solution(x, iterations, accuracy_reached, ratio, converged, errors)

    def _goal(self, scale: Float[Tensor, "S"], limit: Float[Tensor, "S"], accuracy: Float[Tensor, "S"] | None) -> Tensor:
        """The preconditioned residual at which each column stops.

        With an exact preconditioner it is the energy norm of the error, which bounds the error of the mean at any point, in
        posterior standard deviations at that point.
        """
        if self.tol is not None:
            return self.tol * scale
        means = torch.minimum(DEFAULT_TOL * scale, limit)
        return means if accuracy is None else torch.where(accuracy.isnan(), means, limit)

    def _tightened(self, goal: Tensor, reached: Tensor, errors: Tensor, limit: Tensor) -> Float[Tensor, "S"]:
        """The residual at which each column stops: less than planned if the answer could still move there.

        A preconditioned residual hides errors in directions where the preconditioner is far too small.
        """
        if self.tol is not None:
            return goal
        return torch.where((reached <= goal) & (errors > limit), 0.5 * reached * limit / errors.clamp_min(limit), goal)


def _acceptable(scale: Float[Tensor, "S"], accuracy: Float[Tensor, "S"] | None) -> Float[Tensor, "S"]:
    """The largest acceptable error of each column in the energy norm."""
    asked = torch.full_like(scale, MEAN_ERROR) if accuracy is None else accuracy.nan_to_num(MEAN_ERROR)
    return torch.maximum(SMALLEST_TOL * scale, asked)


def _drifted(system: NormalSystem, block: Block, unit: Tensor, r: Tensor, target: Tensor, active: Tensor) -> bool:
    """Whether the steps must start anew: their residual has drifted from the recomputed r, or a column outside is not done."""
    off = r - torch.zeros_like(r).index_copy_(1, active, block.residual * unit)
    return not system.space.agreed(
        bool((system.space.dots(off, system.precondition(off)).clamp_min(0).sqrt() <= DRIFT * target).all())
    )


def _state(tensors: dict[str, Tensor], iterations: int) -> dict[str, Tensor]:
    """The state from which the iteration resumes."""
    return {**tensors, "iterations": torch.tensor(iterations)}
