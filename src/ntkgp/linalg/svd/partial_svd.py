"""The partial SVD from products with A and Aᵀ alone: the paper's appendix "Computing The Partial SVD", by four methods.

All of them end in the same Rayleigh–Ritz step. So, converged or not, U and V have orthonormal columns, Aᵀu = s v holds
exactly, and the error of each triplet is reported as ‖A v − s u‖. torch's ``svd_lowrank`` is no alternative because it needs a
tensor, nor is SciPy's ``svds``, which runs on the CPU only and multiplies one vector at a time.
"""

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.errors import NumericalWarning
from ntkgp._system.resume import NOWHERE, Bookmark
from ntkgp.linalg.operator import Operator


@dataclass(frozen=True)
class PartialSVD:
    """The K largest singular triplets, A ≈ U diag(s) Vᵀ, and their accuracy.

    Example:
        >>> import torch
        >>> from ntkgp.linalg import DenseSVD
        >>> from ntkgp.linalg.operator import Operator
        >>> svd = DenseSVD()(Operator.of(torch.diag(torch.tensor([3.0, 2.0, 1.0]))), rank=2)
        >>> svd.rank, svd.u.shape, svd.converged
        (2, torch.Size([3, 2]), True)
    """

    u: Float[Tensor, "n K"]
    s: Float[Tensor, "K"]
    v: Float[Tensor, "m K"]
    residuals: Float[Tensor, "K"]  # ‖A v − s u‖ per triplet
    converged: bool
    products: int  # columns multiplied by A or Aᵀ

    @property
    def rank(self) -> int:
        """K."""
        return len(self.s)


class SVDMethod(ABC):
    """A method to compute a partial SVD, with its options."""

    def subspace(
        self, symmetric: Operator, rank: int, generator: torch.Generator | None = None, bookmark: Bookmark = NOWHERE
    ) -> Float[Tensor, "n K"]:
        """At least `rank` orthonormal columns that approximately span the top eigenvectors of a symmetric operator."""
        if symmetric.space.spread:
            raise ValueError(
                f"svd must be RandomizedSVD(tol=None) if the head is split over ranks, got {self!r}; use that, or raise "
                "Group(memory=...)"
            )
        return self(symmetric, rank, generator).v

    @abstractmethod
    def __call__(self, operator: Operator, rank: int, generator: torch.Generator | None = None) -> PartialSVD:
        """The `rank` largest singular triplets of the operator."""


def ritz(operator: Operator, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The best triplets with left vectors in the span of q; Aᵀ u = s v holds exactly."""
    v, r = torch.linalg.qr(operator.rmatmat(q))
    w, s, zt = torch.linalg.svd(r.T)
    return q @ w, s, v @ zt.T


def orthonormal(block: Tensor) -> Tensor:
    """An orthonormal basis of the span of the columns."""
    return torch.linalg.qr(block).Q


def check_svd_rank(rank: int, n: int, m: int) -> None:
    """Check 1 ≤ rank ≤ min(n, m)."""
    if not 1 <= rank <= min(n, m):
        raise ValueError(f"rank must be between 1 and min(N·C, P) = {min(n, m)}, got {rank}")


def warn_unless_converged(converged: bool, residuals: Tensor, s: Tensor, tol: float, reached: str, option: str) -> None:
    """Warn if the residuals are above `tol`; `reached` is the limit that stopped the method, `option` the argument to raise."""
    if not converged:
        worst = float(residuals.max() / s[0])
        warnings.warn(
            f"the partial SVD reached residuals of {worst:.1e}·s₁ after {reached}, not {tol:.1e}; raise {option} or tol",
            NumericalWarning,
            stacklevel=4,
        )
