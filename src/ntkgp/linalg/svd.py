"""Partial SVD over products with A and Aᵀ alone: the paper's appendix "Computing The Partial SVD", four ways.

All of them end in the same Rayleigh–Ritz step, so whatever the convergence: U and V have orthonormal columns, Aᵀu = s v
holds exactly, and what is left over is reported as ‖A v − s u‖ per triplet. Written here because torch's
``svd_lowrank`` wants a tensor and SciPy's ``svds`` leaves the GPU and multiplies one vector at a time.
"""

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._bookmark import NOWHERE, Bookmark
from ntkgp._checks import check_count, check_positive
from ntkgp._types import NumericalWarning
from ntkgp.linalg.operator import Operator


@dataclass(frozen=True)
class PartialSVD:
    """The K largest singular triplets, A ≈ U diag(s) Vᵀ, and how good they are.

    Example:
        >>> import torch
        >>> from ntkgp.linalg.operator import Operator
        >>> svd = DenseSVD()(Operator.of(torch.diag(torch.tensor([3.0, 2.0, 1.0]))), rank=2)
        >>> svd.rank, svd.u.shape, svd.converged
        (2, torch.Size([3, 2]), True)
    """

    u: Float[Tensor, "n K"]
    s: Float[Tensor, "K"]
    v: Float[Tensor, "m K"]
    residuals: Float[Tensor, "K"]
    converged: bool
    products: int  # columns multiplied by A or Aᵀ

    @property
    def rank(self) -> int:
        """K."""
        return len(self.s)


class SVDMethod(ABC):
    """A way to compute a partial SVD; an object that carries its own options."""

    def subspace(
        self, symmetric: Operator, rank: int, generator: torch.Generator | None = None, bookmark: Bookmark = NOWHERE
    ) -> Float[Tensor, "n K"]:
        """Orthonormal columns, `rank` or some more, that span about the dominant eigenvectors of a symmetric operator."""
        if symmetric.space.spread:
            raise ValueError(
                f"svd must be RandomizedSVD(tol=None) where the head is split over ranks, got {self!r}; raise Group(memory=...)"
            )
        return self(symmetric, rank, generator).v

    @abstractmethod
    def __call__(self, operator: Operator, rank: int, generator: torch.Generator | None = None) -> PartialSVD:
        """The `rank` largest singular triplets of the operator."""


@dataclass(frozen=True)
class DenseSVD(SVDMethod):
    """All singular vectors of the smaller Gram matrix, as in the paper's experiment, without an N×P matrix.

    Cost: min(n, m)³, and the Gram matrix in memory.

    Example:
        >>> import torch
        >>> from ntkgp.linalg.operator import Operator
        >>> DenseSVD()(Operator.of(torch.diag(torch.tensor([3.0, 2.0, 1.0]))), rank=2).s
        tensor([3., 2.])
    """

    def __call__(self, operator: Operator, rank: int, generator: torch.Generator | None = None) -> PartialSVD:
        """The `rank` largest singular triplets of the operator."""
        n, m = operator.shape
        _check_rank(rank, n, m)
        eye = torch.eye(min(n, m), dtype=operator.dtype, device=operator.device)
        if n <= m:
            gram = operator.gram() if operator.gram is not None else operator.matmat(operator.rmatmat(eye))
            q = _top_eigenvectors(gram, rank)
        else:
            q = _orthonormal(operator.matmat(_top_eigenvectors(operator.rmatmat(operator.matmat(eye)), rank)))
        # Eigenvalues of a Gram matrix know singular values to half the digits only; the Ritz step gives the rest back.
        u, s, v = _ritz(operator, q)
        residuals = (operator.matmat(v) - u * s).norm(dim=0)
        # Exact up to rounding; a kept vector of a null direction may mix with those left out by no more than that.
        converged = bool((residuals <= 1e3 * torch.finfo(s.dtype).eps ** 0.5 * s[0]).all())
        return PartialSVD(u, s, v, residuals, converged, products=2 * min(n, m) + 2 * rank)


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
        _check_rank(rank, n, m)
        start = operator.normal(n, min(rank + self.oversample, n, m), generator)
        return _subspace_iteration(operator, _orthonormal(start), rank, self.tol, self.max_iterations, products=0)


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
        _check_rank(rank, *symmetric.shape)
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
        _check_rank(rank, n, m)
        width = min(rank + self.oversample, n, m)
        q = _orthonormal(operator.matmat(operator.normal(m, width, generator)))
        for _ in range(self.power):
            q = _orthonormal(operator.matmat(_orthonormal(operator.rmatmat(q))))
        more = 1 if self.tol is None else self.max_iterations
        return _subspace_iteration(operator, q, rank, self.tol, more, products=(2 * self.power + 1) * width)


@dataclass(frozen=True)
class Lanczos(SVDMethod):
    """Block Golub–Kahan bidiagonalisation with full reorthogonalisation: the fewest products for a given accuracy.

    Keeps A V_k = U_k B + U_{k+1} L and Aᵀ U_k = V_k Bᵀ with B block bidiagonal; the SVD of the small B gives the triplets and
    ‖L z‖ their residuals, without further products. Memory: (n + m) times the basis, which grows until it converges.

    Args:
        tol: stop when every kept residual ‖A v − s u‖ is below tol·s₁ (and never below rounding).
        block: columns multiplied together; a singular value of higher multiplicity than this can be missed, which the default
            of at least `rank` (up to 32) rules out for small ranks.
        max_basis: largest basis; None allows 20·rank + 200. A warning says what was reached.

    Example:
        >>> import torch
        >>> from ntkgp.linalg.operator import Operator
        >>> Lanczos()(Operator.of(torch.diag(torch.tensor([3.0, 2.0, 1.0]))), rank=2).s.round(decimals=4)
        tensor([3., 2.])
    """

    tol: float = 1e-6
    block: int | None = None
    max_basis: int | None = None

    def __post_init__(self) -> None:
        check_positive("Lanczos", tol=self.tol)
        for name in ("block", "max_basis"):
            if getattr(self, name) is not None:
                check_count(getattr(self, name), name, 1)

    def __call__(self, operator: Operator, rank: int, generator: torch.Generator | None = None) -> PartialSVD:
        """The `rank` largest singular triplets of the operator."""
        n, m = operator.shape
        _check_rank(rank, n, m)
        limit = min(n, m, max(rank, 20 * rank + 200 if self.max_basis is None else self.max_basis))
        block = max(8, min(rank, 32)) if self.block is None else self.block
        none = operator.normal(n, 0, generator)
        # Starting inside the range of A keeps the basis there: it is exhausted exactly when A is.
        image = operator.matmat(operator.normal(m, min(block, limit), generator))
        left = _extend(none, image, image.norm(), operator, generator)[0]
        us, vs = none, operator.normal(m, 0, generator)
        b = torch.zeros(0, 0, dtype=operator.dtype, device=operator.device)
        coupling = torch.zeros(left.shape[1], 0, dtype=b.dtype, device=b.device)
        products = left.shape[1]
        while True:
            # Right block: Aᵀ u = (what the basis knows of it) + v r, with r triangular up to a rotation.
            image = operator.rmatmat(left)
            right, r = _extend(vs, image - vs @ (vs.T @ image), image.norm(), operator, generator)
            b = torch.cat([torch.cat([b, b.new_zeros(len(b), right.shape[1])], dim=1), torch.cat([coupling, r.T], dim=1)])
            us, vs = torch.cat([us, left], dim=1), torch.cat([vs, right], dim=1)
            image = operator.matmat(right)
            width = min(block, limit - us.shape[1])
            rest = image - us @ (us.T @ image)
            products += 2 * right.shape[1]
            left, leak = _extend(us, rest, image.norm(), operator, generator, width)
            coupling = torch.cat([b.new_zeros(width, len(b) - right.shape[1]), leak], dim=1)
            w, s, zt = torch.linalg.svd(b)
            residuals = (rest @ zt.T[-right.shape[1] :, :]).norm(dim=0)
            floor = 1e2 * torch.finfo(b.dtype).eps
            converged = len(s) >= rank and bool((residuals[:rank] <= max(self.tol, floor) * s[0]).all())
            if converged or width <= 0:
                break
        u, v = us @ w[:, :rank], vs @ zt.T[:, :rank]
        _warn_unless(converged, residuals[:rank], s, self.tol, f"a basis of {limit}", "max_basis")
        return PartialSVD(u, s[:rank], v, residuals[:rank], converged, products)


def _extend(
    basis: Tensor, block: Tensor, scale: Tensor, operator: Operator, generator: torch.Generator | None, width: int | None = None
) -> tuple[Tensor, Tensor]:
    """Orthonormal q, orthogonal to `basis`, and r with block ≈ q r.

    Directions already spent (rounding beside `scale`) are replaced by random ones.
    """
    width = block.shape[1] if width is None else max(width, 0)
    q, r = torch.linalg.qr(block)
    spent = r.diagonal().abs() <= 10 * torch.finfo(block.dtype).eps * scale
    if bool(spent.any()):
        # Random left vectors come from the range of A first: when A is tall, others would crowd it out of the basis.
        n, m = operator.shape
        inside = [operator.matmat(operator.normal(m, block.shape[1], generator))] if len(block) == n > m else []
        spare = [q[:, ~spent], *inside, operator.normal(len(block), block.shape[1], generator)]
        q = _independent(basis, torch.cat(spare, dim=1), block.shape[1])
    for _ in range(2):  # twice is enough
        q = _orthonormal(q - basis @ (basis.T @ q))
    q = q[:, :width]
    return q, q.T @ block


def _independent(basis: Tensor, candidates: Tensor, count: int) -> Tensor:
    """The first `count` candidates independent of `basis` and of each other, made orthonormal to both."""
    chosen = basis
    for column in candidates.T:
        rest = column / column.norm()
        for _ in range(2):
            rest = rest - chosen @ (chosen.T @ rest)
        if chosen.shape[1] < basis.shape[1] + count and rest.norm() > 1e-3 * torch.finfo(rest.dtype).eps ** 0.5:
            chosen = torch.cat([chosen, (rest / rest.norm()).unsqueeze(1)], dim=1)
    return chosen[:, basis.shape[1] :]


def _passes(q: Tensor, done: int) -> dict[str, Tensor]:
    return {"q": q, "passes": torch.tensor(done)}


def _subspace_iteration(
    operator: Operator, q: Tensor, rank: int, tol: float | None, max_iterations: int, products: int
) -> PartialSVD:
    """Rayleigh–Ritz and multiply, until the kept residuals (a by-product of the multiplication) are small."""
    floor = 1e2 * torch.finfo(operator.dtype).eps
    iteration = 0
    while True:
        u, s, v = _ritz(operator, q)
        image = operator.matmat(v)
        products += 2 * q.shape[1]
        residuals = (image - u * s).norm(dim=0)[:rank]
        converged = bool((residuals <= max(tol or 0.0, floor) * s[0]).all())
        iteration += 1
        if converged or iteration >= max_iterations:
            break
        q = _orthonormal(image)
    if tol is not None:
        _warn_unless(converged, residuals, s, tol, f"{max_iterations} iterations", "max_iterations")
    return PartialSVD(u[:, :rank], s[:rank], v[:, :rank], residuals, converged, products)


def _ritz(operator: Operator, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The best triplets with left vectors in the span of q; Aᵀ u = s v holds exactly."""
    v, r = torch.linalg.qr(operator.rmatmat(q))
    w, s, zt = torch.linalg.svd(r.T)
    return q @ w, s, v @ zt.T


def _orthonormal(block: Tensor) -> Tensor:
    return torch.linalg.qr(block).Q


def _top_eigenvectors(gram: Tensor, rank: int) -> Tensor:
    return torch.linalg.eigh(gram).eigenvectors[:, -rank:].flip(1)


def _check_rank(rank: int, n: int, m: int) -> None:
    if not 1 <= rank <= min(n, m):
        raise ValueError(f"rank must be between 1 and min(N·C, P) = {min(n, m)}, got {rank}")


def _warn_unless(converged: bool, residuals: Tensor, s: Tensor, tol: float, reached: str, option: str) -> None:
    if not converged:
        worst = float(residuals.max() / s[0])
        warnings.warn(
            f"the partial SVD reached residuals of {worst:.1e}·s₁ after {reached}, not {tol:.1e}; raise {option} or tol",
            NumericalWarning,
            stacklevel=4,
        )
