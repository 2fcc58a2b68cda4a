"""J(x) on several processes: its rows, and if necessary vectors over the weights, are split over the ranks.

Each rank has the rows of J of its points. A product J v is rank-local; Jᵀu is a sum over the ranks. Only this sum and the
inner products of split vectors need communication, so the algorithms need not know about ranks.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp.distributed.shard import Shard
from ntkgp.distributed.split_space import Split
from ntkgp.linalg.space import Space
from ntkgp.tangent.interfaces import JacobianRows
from ntkgp.tangent.jacobian import Jacobian


class ShardedJacobian(JacobianRows):
    """J(x) at the points of all ranks. `matmat` returns the rank-local rows; `rmatmat` takes them and sums over the ranks.

    Args:
        local: the rank-local rows; None if this rank has no points.
        shard: the points of this rank.
        outputs: C.
        parameters: P.
        space: the inner products of vectors over the parameters.
    """

    def __init__(self, local: Jacobian | None, shard: Shard, outputs: int, parameters: int, space: Space):
        self._local, self._group, self._space = local, shard.group, space
        self._few, self.outputs, self.points = shard.few, outputs, shard.points
        self.shape = (shard.points * outputs, parameters)

    def matmat(self, v: Float[Tensor, "p S"]) -> Float[Tensor, "nC S"]:
        """J v, the rank-local rows."""
        if isinstance(self._space, Split):
            parts = [self._product(block) for _, block in self._space.blocks(v)]
            return torch.cat(parts, dim=1) if parts else self._product(v.new_zeros(self.shape[1], 0))
        return self._product(v)

    def rmatmat(self, u: Float[Tensor, "nC S"]) -> Float[Tensor, "p S"]:
        """Jᵀ u, summed over all ranks. Traffic: P·S numbers."""
        return self._summed(lambda: self._zeros(u) if self._local is None else self._local.rmatmat(u))

    def normal(self, v: Float[Tensor, "p S"], weights: Float[Tensor, "nC"]) -> Float[Tensor, "p S"]:
        """Jᵀ diag(weights) J v. Traffic: P·S numbers; twice that if v is split and must be gathered."""
        if not isinstance(self._space, Split):
            return self._summed(lambda: self._zeros(v) if self._local is None else self._local.normal(v, weights))
        out = torch.empty_like(v)
        for these, block in self._space.blocks(v):
            out[:, these] = self._summed(
                lambda block=block: self._zeros(block) if self._local is None else self._local.normal(block, weights)
            )
        return out

    def add_normal_matrix(
        self,
        out: Float[Tensor, "P P"],
        weights: Float[Tensor, "nC"],
        skip: int = 0,
        done: Callable[[int], object] | None = None,
    ) -> None:
        """Add Jᵀ diag(weights) J of the rank-local points to `out`, then sum over the ranks. Traffic: P² numbers."""
        if self._local is not None:
            self._local.add_normal_matrix(out, weights, skip, done)
        self._group.sum(out)

    def diag(self) -> Float[Tensor, "nC"]:
        """The diagonal of J Jᵀ, the rank-local part."""
        return self._few.new_zeros(0, dtype=torch.float64) if self._local is None else self._local.diag()

    def _product(self, v: Tensor) -> Tensor:
        """J v for a complete v, the rank-local rows."""
        return v.new_zeros(0, v.shape[1]) if self._local is None else self._local.matmat(v)

    def _summed(self, product: Callable[[], Tensor]) -> Tensor:
        """Sum a product over the ranks; if vectors are split, return the rows of this rank."""
        whole = self._group.sum(product())
        return whole[self._space.rows].clone() if isinstance(self._space, Split) else whole

    def _zeros(self, like: Tensor) -> Tensor:
        """Zeros in the shape and the (transposed) layout of a product."""
        return like.new_zeros(like.shape[1], self.shape[1]).T
