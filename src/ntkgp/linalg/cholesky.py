"""Cholesky factorisation that never adds jitter in silence."""

import warnings

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.errors import NumericalWarning


def cholesky(matrix: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """The lower factor of I + B, B positive semi-definite up to rounding.

    When rounding in B outweighs the identity (noise below what float64 resolves beside the kernel) the smallest multiple of the
    rounding level that makes the matrix factorisable is added, with a warning that says how much; beyond a hundred thousand
    times that level it raises.

    Example:
        >>> import torch
        >>> cholesky(torch.eye(2) * 4)
        tensor([[2., 0.],
                [0., 2.]])
    """
    return factorise(matrix)[0]


def factorise(matrix: Float[Tensor, "n n"]) -> tuple[Float[Tensor, "n n"], float]:
    """The same, and what was added to the diagonal."""
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
                f"the kernel matrix is singular to working precision beside this noise: {jitter:.1e} times the noise variance "
                f"was added to it (the answer is that of noise_var × {1 + jitter:.3g}); raise noise_var or remove duplicates",
                NumericalWarning,
                stacklevel=4,
            )
            return factor, jitter
    raise ValueError(
        f"expected a positive definite matrix, got one that {jitter:.1e} times the noise variance does not make so; "
        "check the data for non-finite or astronomically large values, or raise noise_var"
    )
