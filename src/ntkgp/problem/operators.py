"""The operators of a problem: J(x) at the training points, whitened, as products and as a kernel."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.check_data import check_prior
from ntkgp._system.locks import cached_property
from ntkgp._system.progress import progress_bar
from ntkgp._system.resume import NOWHERE, Bookmark
from ntkgp.distributed.group import Group
from ntkgp.distributed.jacobian import ShardedJacobian
from ntkgp.distributed.split_space import Split
from ntkgp.linalg.operator import Operator
from ntkgp.linalg.space import WHOLE, Space
from ntkgp.problem.data import Data
from ntkgp.tangent.interfaces import JacobianRows, KernelRows, TangentKernel
from ntkgp.tangent.jacobian import Jacobian
from ntkgp.tangent.tangent import Tangent

KERNEL_POINTS = 1024  # points whose kernel rows are in memory at once


class NoWeightsError(ValueError):
    """Something needs the weights of a network of infinite width."""

    def __init__(self) -> None:
        super().__init__(
            "this needs the weights of the network, and a network of infinite width has none: only its kernel is known; use "
            "method=ntkgp.Exact(), or give the network a finite width"
        )


@dataclass(frozen=True)
class Operators:
    """J(x) at the training points and at queries, as products for the methods.

    J̃ = diag(1/σ) J is the whitened Jacobian: it gives every observation noise variance 1. G = J̃ᵀJ̃ is the normal matrix.
    With several ranks, the rows of J̃ v are rank-local.
    """

    tangent: TangentKernel
    data: Data
    space: Space = WHOLE  # inner products of vectors over the parameters
    known_rows: KernelRows | None = None  # the network at the training points, if already computed
    stores_batches: bool = True  # whether the layer factors of batches are stored if they fit; not worth it for a few passes

    @property
    def parameters(self) -> int:
        """P."""
        return self.tangent.layout.size

    @property
    def shape(self) -> tuple[int, int]:
        """N·C over all ranks, and P."""
        return self.data.rows, self.parameters

    @property
    def has_weights(self) -> bool:
        """Whether the network has weights, and so J(x): a network of infinite width has only a kernel."""
        return isinstance(self.tangent, Tangent)

    @property
    def finite(self) -> Tangent:
        """The tangent of a network with weights; raises if it has none."""
        if not isinstance(self.tangent, Tangent):
            raise NoWeightsError
        return self.tangent

    def kernel_at(self, x: Tensor) -> KernelRows:
        """Return the kernel at other points."""
        return self.tangent.at(x)

    def at(self, x: Tensor) -> Jacobian:
        """Return J(x) at other points; raises if the network has no weights."""
        return self._with_weights(self.tangent.at(x))

    @cached_property
    def rows(self) -> KernelRows:
        """The kernel at the rank-local training points."""
        if self.known_rows is not None:
            return self.known_rows
        data = self.data
        if (batches := data.batches) is not None and isinstance(self.tangent, Tangent):
            points = len(data.noise_std) // data.outputs
            return self.tangent.over(lambda: (x for x, _ in batches), points, self.stores_batches)
        # Compute in the groups in which the points arrived: the factors of a point round differently next to other points.
        first, *later = data.x.split([n for n, times in data.arrivals for _ in range(times)] or len(data.x))
        found = self.tangent.at(first)
        for x in later:
            found = found.extended(self.tangent.at(x))
        return found

    @property
    def jacobian(self) -> Jacobian:
        """J(x) at the rank-local training points; its layer factors are stored if they fit."""
        return self._with_weights(self.rows)

    def _with_weights(self, rows: KernelRows) -> Jacobian:
        if not isinstance(rows, Jacobian):
            raise NoWeightsError
        return rows

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
        return self.rows.gram().div_(std).div_(std.T)

    def cross(self, rows: KernelRows) -> Float[Tensor, "MC NC"]:
        """Return K(x′, x)/σ: the kernel between other points and the training points, in units of the training noise."""
        return rows.cross(self.rows) / self.data.noise_std

    def kernel_times(self, v: Float[Tensor, "NC S"]) -> Float[Tensor, "NC S"]:
        """Return K̃ v, through J̃ if there is one, else by blocks of the kernel."""
        if self.has_weights:
            return self.whitened.matmat(self.whitened.rmatmat(v))
        parts = [self.cross(self.tangent.at(x)) @ v for x in self.data.x.split(KERNEL_POINTS)]
        return torch.cat(parts) / self.data.noise_std.unsqueeze(1)

    @cached_property
    def prior_variance(self) -> Float[Tensor, "NC"]:
        """The diagonal of J(x) J(x)ᵀ in float64; raises if the network cannot be linearised at some point."""
        diag = self.products.diag() if self.has_weights else self.rows.diag()
        check_prior(diag, self.data.noise_std, self.data.outputs)
        return diag.double()

    @cached_property
    def trace(self) -> float:
        """The trace of G, the squared Frobenius norm of the whitened Jacobian."""
        return self.data.total((self.prior_variance * self.data.precision).sum())

    def normal(self, v: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """Return G v in the dtype of v: one pass over the points, nothing of size N×S."""
        return self.products.normal(v, self.data.precision.to(v.dtype))

    def normal_matrix(self, progress: bool = False, bookmark: Bookmark = NOWHERE) -> Float[Tensor, "P P"]:
        """Form the lower triangle of G in float64, in one pass over the points of all ranks.

        Cost: N·C·P² operations (symmetry saves half); memory P² numbers and one working set. Traffic: P² numbers.

        Args:
            progress: show a progress bar.
            bookmark: saves the sum over the points so far (of this rank), and resumes from a saved one.
        """
        saved, P, local = bookmark.load(), self.parameters, len(self.data.noise_std) // self.data.outputs
        first = torch.zeros(P, P, dtype=torch.float64, device=self.data.residual.device)
        out, seen = (first, 0) if saved is None else (saved["matrix"], int(saved["points"]))
        with progress_bar(
            progress, total=local, initial=seen, desc="one pass over the points", unit="point", unit_scale=True, leave=False
        ) as bar:

            def done(points: int) -> None:
                nonlocal seen
                seen += points
                bar.update(points)
                bookmark.save(lambda: {"matrix": out, "points": torch.tensor(seen)})

            self.products.add_normal_matrix(out, self.data.precision, seen, done)
        return out

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

    def split(self, group: Group) -> "Operators":
        """Return the same operators with vectors over the weights split over the ranks; call it before J(x) is computed."""
        return replace(self, space=Split(group, self.parameters))
