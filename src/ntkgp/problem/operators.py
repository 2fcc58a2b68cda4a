"""The operators of a problem: J(x) at the training points, whitened, as products and as a kernel."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.check_data import check_prior
from ntkgp.distributed.jacobian import ShardedJacobian
from ntkgp.distributed.split_space import Split
from ntkgp.linalg.operator import Operator
from ntkgp.linalg.space import WHOLE, Space
from ntkgp.problem.data import Data
from ntkgp.tangent.interfaces import JacobianRows
from ntkgp.tangent.jacobian import Jacobian
from ntkgp.tangent.tangent import Tangent


@dataclass(frozen=True)
class Operators:
    """J(x) at the training points and at queries, as products for the methods.

    J̃ = diag(1/σ) J is the whitened Jacobian: it gives every observation noise variance 1. G = J̃ᵀJ̃ is the normal matrix.
    With several ranks, the rows of J̃ v are rank-local.
    """

    tangent: Tangent
    data: Data
    space: Space = WHOLE  # inner products of vectors over the parameters
    known_jacobian: Jacobian | None = None  # J(x) at the training points, if already computed

    @property
    def parameters(self) -> int:
        """P."""
        return self.tangent.layout.size

    @property
    def shape(self) -> tuple[int, int]:
        """N·C over all ranks, and P."""
        return self.data.rows, self.parameters

    def at(self, x: Tensor) -> Jacobian:
        """Return J(x) at other points."""
        return self.tangent.at(x)

    @cached_property
    def jacobian(self) -> Jacobian:
        """J(x) at the rank-local training points; its layer factors are stored if they fit."""
        if self.known_jacobian is not None:
            return self.known_jacobian
        data = self.data
        if (batches := data.batches) is not None:
            return self.tangent.over(lambda: (x for x, _ in batches), len(data.noise_std) // data.outputs)
        # Compute in the groups in which the points arrived: the factors of a point round differently next to other points.
        first, *later = data.x.split([n for n, times in data.arrivals for _ in range(times)] or len(data.x))
        jacobian = self.tangent.at(first)
        for x in later:
            jacobian = jacobian.extended(self.tangent.at(x))
        return jacobian

    @cached_property
    def products(self) -> JacobianRows:
        """Products with J(x) at the training points of all ranks."""
        data = self.data
        if data.shard is None:
            return self.jacobian
        local = self.jacobian if len(data.noise_std) else None
        return ShardedJacobian(local, data.shard, data.outputs, self.parameters, self.space)

    @cached_property
    def whitened(self) -> Operator:
        """J̃ as an operator."""
        _ = self.prior_variance  # raises if it is not finite
        std, products = self.data.noise_std.unsqueeze(1), self.products
        return Operator(
            shape=products.shape,
            matmat=lambda v: products.matmat(v) / std,
            rmatmat=lambda u: products.rmatmat(u / std),
            dtype=std.dtype,
            device=std.device,
            gram=None if self.data.shard is not None else self.gram,
            space=self.space,
        )

    def gram(self) -> Float[Tensor, "NC NC"]:
        """Return K̃ = J̃J̃ᵀ at the training points, in the dtype of the network."""
        _ = self.prior_variance  # raises if it is not finite
        std = self.data.noise_std.unsqueeze(1)
        return self.jacobian.gram() / (std * std.T)

    def cross(self, rows: Jacobian) -> Float[Tensor, "MC NC"]:
        """Return K(x′, x)/σ: the kernel between other points and the training points, in units of the training noise."""
        return rows.cross(self.jacobian) / self.data.noise_std

    @cached_property
    def prior_variance(self) -> Float[Tensor, "NC"]:
        """The diagonal of J(x) J(x)ᵀ in float64; raises if the network cannot be linearised at some point."""
        diag = self.products.diag()
        check_prior(diag, self.data.noise_std, self.data.outputs)
        return diag.double()

    @cached_property
    def trace(self) -> float:
        """The trace of G, the squared Frobenius norm of the whitened Jacobian."""
        return self.data.total((self.prior_variance * self.data.precision).sum())

    def normal(self, v: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """Return G v in the dtype of v: one pass over the points, nothing of size N×S."""
        return self.products.normal(v, self.data.precision.to(v.dtype))

    def features(self, rows: Jacobian, v: Float[Tensor, "P S"]) -> Float[Tensor, "MC S"]:
        """Return J(x′) v. If vectors over the weights are split, all ranks must call this, each with its own points."""
        if not isinstance(self.space, Split):
            return rows.matmat(v)
        parts = [rows.matmat(block) for _, block in self.space.blocks(v)]
        return torch.cat(parts, dim=1) if parts else rows.matmat(v.new_zeros(self.parameters, 0))

    def draw_weights(self, columns: int, generator: torch.Generator | None) -> Float[Tensor, "P S"]:
        """Draw standard normal weights; if vectors over the weights are split, return the rank-local rows."""
        residual = self.data.residual
        return self.space.normal(columns, generator, residual.dtype, residual.device, self.parameters)

    def split(self) -> "Operators":
        """Return the same operators with vectors over the weights split over the ranks; call it before J(x) is computed."""
        assert self.data.shard is not None
        return replace(self, space=Split(self.data.shard.group, self.parameters))
