"""Cholesky factorisation that never adds jitter without a warning."""

import warnings

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.errors import NumericalWarning


def cholesky(matrix: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """The lower factor of I + B, with B positive semi-definite up to rounding.

    If rounding errors in B exceed the identity (the noise is too small compared to the kernel), the factorisation adds 1, 10,
    100, ... times the rounding level to the diagonal, as little as works, and a warning says how much; if 100 000 times the
    rounding level is not enough, it raises ValueError.

    Example:
        >>> import torch
        >>> cholesky(torch.eye(2) * 4)
        tensor([[2., 0.],
                [0., 2.]])
    """
    return factorise(matrix)[0]


def factorise(matrix: Float[Tensor, "n n"]) -> tuple[Float[Tensor, "n n"], float]:
    """The lower factor of I + B, and the number added to the diagonal."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    if not info.any():
        return factor, 0.0
    level = torch.finfo(matrix.dtype).eps * float(matrix.diagonal().sum())
    jitter = 0.0
    for jitter in [level * 10.0**power for power in range(6)]:
        factor, info = torch.linalg.cholesky_ex(
            matrix + jitter * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
        )
        if not info.any():
            warnings.warn(
                f"the kernel matrix is singular to working precision at this noise_var: {jitter:.1e} times the noise variance "
                f"was added to its diagonal (the answer is for noise_var × {1 + jitter:.3g}); raise noise_var or remove "
                "duplicate points",
                NumericalWarning,
                stacklevel=4,
            )
            return factor, jitter
    raise ValueError(
        f"expected a positive definite matrix, got one that stays indefinite with {jitter:.1e} times the noise variance added; "
        "check the data for non-finite or extremely large values, or raise noise_var"
    )
