"""A matrix that is known only by its products."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ntkgp._system.check_options import check_generator
from ntkgp.linalg.space import WHOLE, Space, normal_rows


@dataclass(frozen=True)
class Operator:
    """An n×m matrix A: ``matmat`` multiplies m×S by A, ``rmatmat`` n×S by Aᵀ, ``gram`` (if there is a cheap way) gives A Aᵀ.

    `space` has the inner products of vectors of length m.
    """

    shape: tuple[int, int]
    matmat: Callable[[Tensor], Tensor]
    rmatmat: Callable[[Tensor], Tensor]
    dtype: torch.dtype
    device: torch.device
    gram: Callable[[], Tensor] | None = None
    space: Space = WHOLE

    @classmethod
    def of(cls, matrix: Tensor) -> "Operator":
        """A dense matrix as an operator."""
        n, m = matrix.shape
        return cls((n, m), matrix.matmul, matrix.T.matmul, matrix.dtype, matrix.device, lambda: matrix @ matrix.T)

    def normal(self, rows: int, columns: int, generator: torch.Generator | None) -> Tensor:
        """Draw standard normal numbers on the operator's device and in its dtype; the generator may be on the CPU."""
        check_generator(generator)
        return normal_rows(rows, slice(0, rows), columns, generator, self.dtype, self.device)
