"""Block conjugate gradients: all right-hand sides share one Krylov space, so that each step serves every one of them.

With S right-hand sides the space grows by S directions per product, and the number of steps falls several times. This is
Dubrulle's form of the method (2001): the residuals are R = Q C with Q orthonormal in the inner product of the preconditioner,
renewed in every step. Residuals that have become dependent (columns have converged, or were equal from the start) leave the
block.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp.linalg.space import Space

Product = Callable[[Tensor], Tensor]
DEPENDENT = 1e-14  # relative size of an eigenvalue of the Gram matrix of the residuals below which a direction leaves the block


@dataclass
class Block:
    """The state of the iteration for (G + I)X = B: x is updated in place of B's residual, q c."""

    x: Float[Tensor, "P S"]
    q: Float[Tensor, "P k"]  # basis of the residuals
    p: Float[Tensor, "P k"]  # search directions
    c: Float[Tensor, "k S"]  # coefficients of the residuals; the norm of each column is that of its preconditioned residual

    @classmethod
    def of(cls, x: Float[Tensor, "P S"], r: Float[Tensor, "P S"], precondition: Product, space: Space) -> "Block":
        """Start from an approximate solution and its residual."""
        q, z, c = _factored(r, precondition(r), space)
        return cls(x, q, z, c)

    @property
    def residual(self) -> Float[Tensor, "P S"]:
        """The residual that the steps update."""
        return self.q @ self.c

    @property
    def residuals(self) -> Float[Tensor, "S"]:
        """The norm of each preconditioned residual."""
        return torch.linalg.vector_norm(self.c, dim=0)

    def step(self, product: Product, precondition: Product, space: Space) -> None:
        """One product with as many columns as there are directions, and a few of P·k²."""
        if not self.q.shape[1]:
            return
        w = product(self.p) + self.p
        curvature = space.gram(self.p, w)
        factor, info = torch.linalg.cholesky_ex((curvature + curvature.T) / 2)
        if bool(info.any()) or not bool(torch.isfinite(factor).all()):  # rounding: start again from the true residual
            self.q, self.p, self.c = self.q[:, :0], self.p[:, :0], self.c[:0]
            return
        alpha = torch.cholesky_inverse(factor)
        self.x = self.x + self.p @ (alpha @ self.c)
        q = self.q - w @ alpha
        self.q, z, turn = _factored(q, precondition(q), space)
        self.p = z + self.p @ turn.T
        self.c = turn @ self.c


def _factored(r: Float[Tensor, "P S"], z: Float[Tensor, "P S"], space: Space) -> tuple[Tensor, Tensor, Tensor]:
    """R = Q C with QᵀZ(Q) = I, given the preconditioned Z: return Q, its preconditioned image, and C."""
    gram = space.gram(r, z)
    values, vectors = torch.linalg.eigh((gram + gram.T) / 2)
    seen = values > DEPENDENT * values[-1].clamp_min(torch.finfo(values.dtype).tiny)
    scale, vectors = values[seen].sqrt(), vectors[:, seen]
    turn = vectors / scale
    return r @ turn, z @ turn, scale.unsqueeze(1) * vectors.T
