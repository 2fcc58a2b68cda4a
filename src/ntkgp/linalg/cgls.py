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
from ntkgp.linalg.space import WHOLE, Space

Product = Callable[[Tensor], Tensor]
DEFAULT_TOL = 1e-6  # relative to the preconditioned residual of Δ = 0
SMALLEST_TOL = 1e-10  # relative to the same residual: the data has no more digits
MEAN_ERROR = 0.05  # largest acceptable error of the mean, in posterior standard deviations


@dataclass(frozen=True)
class NormalSystem:
    """The system (G + I)Δ = c, given by products.

    Attributes:
        product: v ↦ G v.
        precondition: r ↦ about (G + I)⁻¹ r.
        rough: a cheaper, less precise v ↦ G v. If given, the steps use it for three digits at a time; residuals that decide
            on convergence are recomputed with `product` (iterative refinement).
        space: inner products of the columns, which may be split over processes.
    """

    product: Product
    precondition: Product
    rough: Product | None = None
    space: Space = WHOLE


@dataclass(frozen=True)
class Solution:
    """Solutions of (G + I)Δ = c, one per column, and their accuracy."""

    x: Float[Tensor, "P S"]
    iterations: int
    accuracy: float  # the worst column's preconditioned residual, relative to its value at Δ = 0
    gradient_ratio: float  # the worst column's gradient norm, relative to its value at the start of the iteration
    converged: bool


@dataclass(frozen=True)
class CGLS:
    """Conjugate gradients for least squares, preconditioned by the head and started from its closed form.

    Cost: one product with G per step, for all right-hand sides at once; memory 5·P·S numbers.

    Args:
        tol: stop when each preconditioned residual is below tol times its value at Δ = 0, checked with a recomputed residual.
            None takes 1e-6, or less if 1e-6 could move the mean by 0.05 posterior standard deviations (very little noise).
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
        start: Float[Tensor, "P S"] | None = None,
        progress: bool = False,
        bookmark: Bookmark = NOWHERE,
    ) -> Solution:
        """Solve (G + I)Δ = c for every column of c.

        Args:
            system: the products with G and with the preconditioner.
            c: right-hand sides.
            start: initial guess, such as the solution of a similar problem; None takes the preconditioner applied to c.
            progress: show a progress bar.
            bookmark: saves the state of the iteration, and resumes from a saved one.
        """
        product, precondition, space = system.product, system.precondition, system.space
        step_product, digits = (product, 0.0) if system.rough is None else (system.rough, 1e-3)
        saved = bookmark.load()
        if saved is None:
            guess = precondition(c)
            scale = space.dots(c, guess).sqrt().clamp_min(torch.finfo(c.dtype).tiny)
            x, r = guess if start is None else start, c
            p, rz, target, first, iterations = r, scale, scale, scale.new_zeros(0), 0
        else:
            x, r, p, scale, rz, target, first = (saved[name] for name in ("x", "r", "p", "scale", "rz", "target", "first"))
            iterations = int(saved["iterations"])
        goal = self._goal(scale)
        bar = progress_bar(
            progress, total=self.max_iterations, initial=iterations, desc="solving", leave=False, mininterval=0.5
        )
        while True:
            if saved is None:
                r = c - product(x) - x  # recomputed: the residual that the steps update drifts
                z = precondition(r)
                rz = space.dots(r, z).clamp_min(0)
                norm = space.norms(r)
                first = norm.clone() if not len(first) else first
                done = rz.sqrt() <= goal
                if space.agreed(bool(done.all())) or iterations >= self.max_iterations:
                    break
                if not bool(torch.isfinite(rz).all()):
                    raise ValueError(
                        "a residual of the solver is not finite because a product overflows; rescale x, y or noise_var"
                    )
                target = torch.maximum(goal / 2, digits * rz.sqrt())
                p = z.clone()
            saved = None
            while iterations < self.max_iterations and space.agreed(bool((rz.sqrt() > target).any())):
                q = step_product(p) + p
                step = _quotient(rz, space.dots(p, q))
                x = x + step * p
                r = r - step * q
                z = precondition(r)
                new = space.dots(r, z).clamp_min(0)
                p = z + _quotient(new, rz) * p
                rz, iterations = new, iterations + 1
                tensors = {"x": x, "r": r, "p": p, "scale": scale, "rz": rz, "target": target, "first": first}
                bookmark.save(partial(_state, tensors, iterations))
                bar.update()
                if progress:
                    bar.set_postfix(error=f"{float((rz.sqrt() / scale).max()):.1e}")
        bar.close()
        accuracy = float((rz.sqrt() / scale).max())
        converged = bool(done.all())
        if not converged:
            asked = float((goal / scale).min())
            warnings.warn(
                f"the solver reached a relative accuracy of {accuracy:.1e} after {iterations} iterations, not {asked:.1e}; "
                "raise max_iterations, or raise the rank for a better preconditioner",
                NumericalWarning,
                stacklevel=2,
            )
        ratio = float((norm / first.clamp_min(torch.finfo(c.dtype).tiny)).max())
        return Solution(x, iterations, accuracy, ratio, converged)

    def _goal(self, scale: Float[Tensor, "S"]) -> Float[Tensor, "S"]:
        """The preconditioned residual at which each column stops.

        With an exact preconditioner it is the energy norm of the error, which bounds the error of the mean at any point, in
        posterior standard deviations at that point.
        """
        if self.tol is not None:
            return self.tol * scale
        return torch.minimum(DEFAULT_TOL * scale, (SMALLEST_TOL * scale).clamp_min(MEAN_ERROR))


def _state(tensors: dict[str, Tensor], iterations: int) -> dict[str, Tensor]:
    """The state from which the iteration resumes."""
    return {**tensors, "iterations": torch.tensor(iterations)}


def _quotient(numerator: Tensor, denominator: Tensor) -> Tensor:
    """The quotient; 0 for columns that have converged to the last bit."""
    return torch.where(denominator > 0, numerator / denominator.clamp_min(1e-300), 0.0)
