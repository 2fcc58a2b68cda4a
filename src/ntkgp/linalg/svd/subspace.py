"""Partial SVDs by subspace iteration: the block power method and the randomised range finder."""

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.check_options import check_count, check_positive
from ntkgp._system.resume import NOWHERE, Bookmark
from ntkgp.linalg.operator import Operator
from ntkgp.linalg.svd.partial_svd import PartialSVD, SVDMethod, check_svd_rank, orthonormal, ritz, warn_unless_converged


@dataclass(frozen=True)
class PowerIteration(SVDMethod):
    """The block power method of the paper's appendix: multiply by A and Aᵀ in turn and orthonormalise, until converged.

    Cost: (rank + oversample) products with A and with Aᵀ per iteration; memory (n + m)·(rank + oversample).

    Args:
        tol: stop when all `rank` residuals ‖A v − s u‖ are below tol·s₁ (or below the rounding level).
        max_iterations: stop after this many, with a warning that reports the residuals.
        oversample: extra columns; more of them make the smallest singular values converge faster.

    Example:
        >>> import torch
        >>> from ntkgp.linalg.operator import Operator
        >>> svd = PowerIteration()(Operator.of(torch.diag(torch.tensor([3.0, 2.0, 1.0]))), rank=2)
        >>> svd.s.round(decimals=4), svd.converged
        (tensor([3., 2.]), True)
    """

    tol: float = 1e-6
    max_iterations: int = 1000
    oversample: int = 8

    def __post_init__(self) -> None:
        check_positive("PowerIteration", tol=self.tol)
        check_count(self.max_iterations, "max_iterations", 1)
        check_count(self.oversample, "oversample", 0)

    def __call__(self, operator: Operator, rank: int, generator: torch.Generator | None = None) -> PartialSVD:
        """The `rank` largest singular triplets of the operator."""
        n, m = operator.shape
        check_svd_rank(rank, n, m)
        start = operator.normal(n, min(rank + self.oversample, n, m), generator)
        return _subspace_iteration(operator, orthonormal(start), rank, self.tol, self.max_iterations, products=0)


@dataclass(frozen=True)
class RandomizedSVD(SVDMethod):
    """Halko, Martinsson and Tropp (2011): a random sketch of the range, sharpened by a few power passes.

    Cost: (rank + oversample) products per pass, 2·power + 3 passes if they meet the tolerance; memory as PowerIteration.

    Args:
        oversample: extra columns of the sketch.
        power: power passes before the first check of the residuals.
        tol: add power passes while one of the `rank` residuals is above tol·s₁; None stops after `power` passes in any case.
        max_iterations: stop after this many, with a warning that reports the residuals.

    Example:
        >>> import torch
        >>> from ntkgp.linalg.operator import Operator
        >>> RandomizedSVD()(Operator.of(torch.diag(torch.tensor([3.0, 2.0, 1.0]))), rank=2).s.round(decimals=4)
        tensor([3., 2.])
    """

    oversample: int = 10
    power: int = 2
    tol: float | None = 1e-6
    max_iterations: int = 1000

    def __post_init__(self) -> None:
        check_positive("RandomizedSVD", tol=self.tol)
        for name, least in {"oversample": 0, "power": 0, "max_iterations": 1}.items():
            check_count(getattr(self, name), name, least)

    def subspace(
        self, symmetric: Operator, rank: int, generator: torch.Generator | None = None, bookmark: Bookmark = NOWHERE
    ) -> Float[Tensor, "n K"]:
        """Only the sketch if tol is None: 2·power + 2 products per column, no residuals."""
        if self.tol is not None:
            return super().subspace(symmetric, rank, generator, bookmark)
        check_svd_rank(rank, *symmetric.shape)
        space, width = symmetric.space, min(rank + self.oversample, *symmetric.shape)
        q = space.normal(width, generator, symmetric.dtype, symmetric.device, symmetric.shape[0])
        saved = bookmark.load()
        done, q = (0, q) if saved is None else (int(saved["passes"]), saved["q"])
        for k in range(done, 2 * self.power + 2):
            q = space.orthonormal(symmetric.matmat(q))
            bookmark.save(partial(_state, q, k + 1))
        return q

    def __call__(self, operator: Operator, rank: int, generator: torch.Generator | None = None) -> PartialSVD:
        """The `rank` largest singular triplets of the operator."""
        n, m = operator.shape
        check_svd_rank(rank, n, m)
        width = min(rank + self.oversample, n, m)
        q = orthonormal(operator.matmat(operator.normal(m, width, generator)))
        for _ in range(self.power):
            q = orthonormal(operator.matmat(orthonormal(operator.rmatmat(q))))
        more = 1 if self.tol is None else self.max_iterations
        return _subspace_iteration(operator, q, rank, self.tol, more, products=(2 * self.power + 1) * width)


def _state(q: Tensor, done: int) -> dict[str, Tensor]:
    """The state from which the passes resume."""
    return {"q": q, "passes": torch.tensor(done)}


def _subspace_iteration(
    operator: Operator, q: Tensor, rank: int, tol: float | None, max_iterations: int, products: int
) -> PartialSVD:
    """Repeat a Rayleigh–Ritz step and a product until the residuals, a by-product of that product, are small."""
    floor = 1e2 * torch.finfo(operator.dtype).eps
    iteration = 0
    while True:
        u, s, v = ritz(operator, q)
        image = operator.matmat(v)
        products += 2 * q.shape[1]
        residuals = (image - u * s).norm(dim=0)[:rank]
        converged = bool((residuals <= max(tol or 0.0, floor) * s[0]).all())
        iteration += 1
        if converged or iteration >= max_iterations:
            break
        q = orthonormal(image)
    if tol is not None:
        warn_unless_converged(converged, residuals, s, tol, f"{max_iterations} iterations", "max_iterations")
    return PartialSVD(u[:, :rank], s[:rank], v[:, :rank], residuals, converged, products)
