"""The partial SVD from all eigenvectors of the smaller Gram matrix."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ntkgp.linalg.operator import Operator
from ntkgp.linalg.svd.partial_svd import PartialSVD, SVDMethod, check_svd_rank, orthonormal, ritz


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
        check_svd_rank(rank, n, m)
        eye = torch.eye(min(n, m), dtype=operator.dtype, device=operator.device)
        if n <= m:
            gram = operator.gram() if operator.gram is not None else operator.matmat(operator.rmatmat(eye))
            q = _top_eigenvectors(gram, rank)
        else:
            q = orthonormal(operator.matmat(_top_eigenvectors(operator.rmatmat(operator.matmat(eye)), rank)))
        # A Gram matrix gives singular values to half the digits only; the Ritz step recovers the other half.
        u, s, v = ritz(operator, q)
        residuals = (operator.matmat(v) - u * s).norm(dim=0)
        # Exact up to rounding: a vector of a null direction may mix with unused vectors, but only by that much.
        converged = bool((residuals <= 1e3 * torch.finfo(s.dtype).eps ** 0.5 * s[0]).all())
        return PartialSVD(u, s, v, residuals, converged, products=2 * min(n, m) + 2 * rank)


def _top_eigenvectors(gram: Tensor, rank: int) -> Tensor:
    """The eigenvectors of the `rank` largest eigenvalues, largest first."""
    return torch.linalg.eigh(gram).eigenvectors[:, -rank:].flip(1)
