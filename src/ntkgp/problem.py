"""The regression problem after the door: checked, in one dtype, residuals and noise ready, J(x) as an operator."""

import copy
import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._checks import (
    check_finite,
    check_inputs,
    check_noise,
    check_prior,
)
from ntkgp._progress import progress_bar
from ntkgp._types import MeanFunction
from ntkgp.batches import Batches
from ntkgp.fingerprint import dtypes_of, fingerprint
from ntkgp.linalg.operator import Operator
from ntkgp.linalg.space import WHOLE, Space, normal_rows
from ntkgp.prior_mean import evaluate_mean
from ntkgp.sharded import Shard, ShardedJacobian, Split
from ntkgp.tangent.functional import PureNetwork
from ntkgp.tangent.jacobian import Jacobian
from ntkgp.tangent.tangent import Tangent


@dataclass(frozen=True)
class Problem:
    """y = m(x) + J(x)Δ + noise, Δ ~ N(0, I). Rows are point-major; `noise_std` and `residual` have N·C entries.

    Where the data lies on several ranks, x, `residual` and `noise_std` are this rank's, and so are the rows of J̃ v.
    """

    network: PureNetwork
    tangent: Tangent
    x: Tensor
    residual: Float[Tensor, "NC"]
    noise_std: Float[Tensor, "NC"]
    prior_mean: MeanFunction
    prior_mean_name: str  # "zero", "network" or "function"
    common_noise: Float[Tensor, "1 C"] | None  # where it is the same at every point
    vector_output: bool
    user_dtype: torch.dtype
    module_dtypes: dict[str, str]  # of the user's parameters and buffers
    batches: Batches | None = None  # the points, where they do not fit in memory; x is then the first batch
    matrix: Float[Tensor, "P P"] | None = None  # G = J̃ᵀJ̃ in float64, where it was written out
    parts: tuple[tuple[int, int], ...] = ()  # (n, times): the points came n at a time, so often; () for all at once
    known_jacobian: Jacobian | None = None  # where most of it was there already
    shard: Shard | None = None  # where other ranks have more points
    space: Space = WHOLE  # of vectors over the parameters

    @property
    def points(self) -> int:
        """N, of all ranks."""
        return len(self.noise_std) // self.outputs if self.shard is None else self.shard.points

    @property
    def outputs(self) -> int:
        """C."""
        return self.tangent.outputs

    @property
    def shape(self) -> tuple[int, int]:
        """N·C and P, of J(x) with the rows of all ranks."""
        return self.points * self.outputs, self.tangent.space.size

    @cached_property
    def products(self) -> Jacobian | ShardedJacobian:
        """J(x) at the training points of all ranks, to multiply with."""
        if self.shard is None:
            return self.jacobian
        local = self.jacobian if len(self.noise_std) else None
        return ShardedJacobian(local, self.shard, self.outputs, self.tangent.space.size, self.space)

    @cached_property
    def jacobian(self) -> Jacobian:
        """J(x) at the training points that are here, its layer factors kept."""
        if self.known_jacobian is not None:
            return self.known_jacobian
        if (batches := self.batches) is not None:
            return self.tangent.over(lambda: (x for x, _ in batches), len(self.noise_std) // self.outputs)
        # As they came: the factors of a point round differently beside others.
        first, *later = self.x.split([n for n, times in self.parts for _ in range(times)] or len(self.x))
        jacobian = self.tangent.at(first)
        for x in later:
            jacobian = jacobian.extended(self.tangent.at(x))
        return jacobian

    @property
    def whitened_residual(self) -> Float[Tensor, "NC"]:
        """The residuals in units of each observation's noise."""
        return self.residual / self.noise_std

    @property
    def noise_scale(self) -> float:
        """σ; the root mean square of the σ_n when they differ."""
        return math.sqrt(self._total(self.noise_std.square().sum()) / (self.points * self.outputs))

    @property
    def beta(self) -> float:
        """The paper's β = σ²/N."""
        return self.noise_scale**2 / self.points

    @property
    def loss_weights(self) -> Float[Tensor, "N C"]:
        """w_n = σ²/σ_n²: how much each observation counts in the paper's loss; 1 when the noise is the same everywhere."""
        return (self.noise_scale / self.noise_std).square().unflatten(0, (-1, self.outputs))

    @cached_property
    def whitened(self) -> Operator:
        """J̃ = diag(1/σ) J: with it every observation has noise variance 1."""
        _ = self.prior_variance  # finite, or it says where not
        std, jacobian = self.noise_std.unsqueeze(1), self.products
        return Operator(
            shape=jacobian.shape,
            matmat=lambda v: jacobian.matmat(v) / std,
            rmatmat=lambda u: jacobian.rmatmat(u / std),
            dtype=self.network.dtype,
            device=self.network.device,
            gram=lambda: jacobian.kernel() / (std * std.T),
            space=self.space,
        )

    @cached_property
    def precision(self) -> Float[Tensor, "NC"]:
        """1/σ² of each observation, in float64."""
        return self.noise_std.double().square().reciprocal()

    @cached_property
    def prior_variance(self) -> Float[Tensor, "NC"]:
        """The diagonal of J(x) J(x)ᵀ in float64; an error if the network cannot be linearised at some point."""
        diag = self.products.diag()
        check_prior(diag, self.noise_std, self.outputs)
        return diag.double()

    @cached_property
    def trace(self) -> float:
        """The trace of G = J̃ᵀJ̃, the squared Frobenius norm of the whitened Jacobian."""
        return self._total((self.prior_variance * self.precision).sum())

    @cached_property
    def kernel(self) -> Float[Tensor, "NC NC"]:
        """K̃ = J̃J̃ᵀ, written out in float64."""
        assert self.whitened.gram is not None
        return self.whitened.gram().double()

    def normal(self, v: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """G v = J̃ᵀJ̃ v in the dtype of v: one pass over the points, nothing of size N×S; none where G is written out."""
        if self.matrix is not None:
            return self.matrix.to(v.dtype) @ v
        return self.products.normal(v, self.precision.to(v.dtype))

    def _total(self, value: Tensor) -> float:
        """The sum of a number over all ranks."""
        return float(value) if self.shard is None else self.shard.group.total(float(value))

    @property
    def identity(self) -> dict[str, str | int | float]:
        """What tells this problem from others, whatever ranks its points lie on. Cost: a pass over the weights."""
        digests = fingerprint(self.network.module, dtypes_of(self.network.module))
        return {
            "points": self.points,
            "parameters": self.tangent.space.size,
            "module": hashlib.sha256(repr(digests).encode()).hexdigest(),
            "prior_var": repr(self.tangent.scales),
            "dtype": str(self.network.dtype),
            "residuals": self._total(self.whitened_residual.double().square().sum()),
            "noise": self._total(self.noise_std.double().sum()),
        }

    def weights_normal(self, columns: int, generator: torch.Generator | None) -> Float[Tensor, "P S"]:
        """Standard normal weights; where these are split, the rows of this rank."""
        return self.space.normal(columns, generator, self.network.dtype, self.network.device, self.tangent.space.size)

    def rows_normal(self, columns: int, generator: torch.Generator | None) -> Float[Tensor, "NC S"]:
        """Standard normal noise for the rows of this rank, however all rows lie on ranks."""
        start = 0 if self.shard is None else self.shard.start * self.outputs
        here, every = slice(start, start + len(self.noise_std)), self.points * self.outputs
        return normal_rows(every, here, columns, generator, self.network.dtype, self.network.device)

    def sample_points(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Some of the training points (with batches, of the first), drawn from those of all ranks."""
        if self.shard is not None:
            return self.shard.pick(self.x, count, generator)
        place = "cpu" if generator is None else generator.device
        picks = torch.randperm(len(self.x), generator=generator, device=place)[:count]
        return self.x[picks.to(self.x.device)]

    @property
    def few(self) -> Tensor:
        """Some training points, on all ranks the same."""
        return self.x if self.shard is None else self.shard.few

    def features(self, jacobian: Jacobian, v: Float[Tensor, "P S"]) -> Float[Tensor, "MC S"]:
        """J(x′) v for vectors over the weights as they lie: where they are split all ranks must take part, each with its x′."""
        if not isinstance(self.space, Split):
            return jacobian.matmat(v)
        parts = [jacobian.matmat(block) for _, block in self.space.blocks(v)]
        return torch.cat(parts, dim=1) if parts else jacobian.matmat(v.new_zeros(self.tangent.space.size, 0))

    def split(self) -> "Problem":
        """The same with vectors over the weights split over the ranks; before J(x) was looked at."""
        assert self.shard is not None
        return replace(self, space=Split(self.shard.group, self.tangent.space.size))

    def written_out(self, progress: bool = False) -> "Problem":
        """The same with G as a matrix. Cost: N·C·P² operations in one pass over the points; memory P² numbers."""
        with progress_bar(progress, total=self.points, desc="one pass over the rows", unit="row", unit_scale=True) as bar:
            matrix = self.products.gram(self.precision, bar.update)
        written = copy.copy(self)  # unlike dataclasses.replace, keeps the factors
        object.__setattr__(written, "matrix", matrix)
        return written

    def checked(self, x: Tensor) -> Tensor:
        """Query points, checked against the training points."""
        check_inputs(x, self.network.module)
        if x.shape[1:] != self.x.shape[1:]:
            raise ValueError(f"x must have shape (M, {', '.join(map(str, self.x.shape[1:]))}) as in fit, got {tuple(x.shape)}")
        return x

    def mean_at(self, x: Tensor) -> Float[Tensor, "MC"]:
        """m(x), flattened point-major."""
        return evaluate_mean(self.prior_mean, x, self.outputs, self.network.dtype).flatten()

    def noise_at(self, x: Tensor, noise_var: float | Tensor | None) -> Tensor | None:
        """The noise variance of new points: the one given, else the common one of the training data, else unknown."""
        value = self.common_noise if noise_var is None else noise_var
        return None if value is None else check_noise(value, (len(x), self.outputs)).to(x.device)

    def shaped(self, values: Float[Tensor, "MC"]) -> Tensor:
        """As the user's y: (M,) or (M, C), in its dtype."""
        values = self.answer(values).unflatten(0, (-1, self.outputs))
        return values.squeeze(1) if self.vector_output else values

    def positive(self, covariance: Float[Tensor, "MC MC"]) -> Float[Tensor, "MC MC"]:
        """A symmetric estimate of a covariance less its negative part, as an answer."""
        check_finite(covariance, self.outputs, f"the covariance (in {covariance.dtype})")
        values, vectors = torch.linalg.eigh(covariance)
        return self.answer(vectors * values.clamp_min(0) @ vectors.T)

    def answer(self, values: Float[Tensor, "MC *more"]) -> Float[Tensor, "MC *more"]:
        """Rows for each output at each query point, in the dtype of y: finite, or an error that says where they are not."""
        check_finite(values, self.outputs, f"the answer (in {values.dtype})")
        answer = values.to(self.user_dtype)
        check_finite(answer, self.outputs, f"the answer in {self.user_dtype}, the dtype of y at the fit,")
        return answer
