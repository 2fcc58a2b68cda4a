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
    """The block power method of the paper's appendix: multiply by A and Aᵀ in turn, orthonormalise, until it settles.

    Cost: (rank + oversample) products with A and with Aᵀ an iteration; memory (n + m)·(rank + oversample).

    Args:
        tol: stop when every kept residual ‖A v − s u‖ is below tol·s₁ (and never below rounding).
        max_iterations: stop anyway; a warning says what was reached.
        oversample: extra columns, which set how fast the last kept ones settle.

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

    Cost: (rank + oversample) products a pass, 2·power + 3 passes when the tolerance is met by then; memory as PowerIteration.

    Args:
        oversample: extra columns of the sketch.
        power: power passes made before the first look at the residuals.
        tol: go on with power passes while a kept residual is above tol·s₁; None stops after `power`, whatever they are.
        max_iterations: stop anyway; a warning says what was reached.

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
        """The sketch alone when there is no tolerance to meet: 2·power + 2 products a column, no residuals."""
        if self.tol is not None:
            return super().subspace(symmetric, rank, generator, bookmark)
        check_svd_rank(rank, *symmetric.shape)
        space, width = symmetric.space, min(rank + self.oversample, *symmetric.shape)
        q = space.normal(width, generator, symmetric.dtype, symmetric.device, symmetric.shape[0])
        kept = bookmark.load()
        done, q = (0, q) if kept is None else (int(kept["passes"]), kept["q"])
        for k in range(done, 2 * self.power + 2):
            q = space.orthonormal(symmetric.matmat(q))
            bookmark.save(partial(_passes, q, k + 1))
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


def _passes(q: Tensor, done: int) -> dict[str, Tensor]:
    return {"q": q, "passes": torch.tensor(done)}


def _subspace_iteration(
    operator: Operator, q: Tensor, rank: int, tol: float | None, max_iterations: int, products: int
) -> PartialSVD:
    """Rayleigh–Ritz and multiply, until the kept residuals (a by-product of the multiplication) are small."""
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
