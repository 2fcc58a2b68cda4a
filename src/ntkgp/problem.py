"""The regression problem after the door: checked, in one dtype, residuals and noise ready, J(x) as an operator."""

import copy
import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn
from tqdm.auto import tqdm

from ntkgp._checks import (
    check_inputs,
    check_module,
    check_noise,
    check_outputs,
    check_targets,
    chosen_parameters,
    prior_scales,
)
from ntkgp._types import MeanFunction
from ntkgp.batches import Batches
from ntkgp.distributed import Group
from ntkgp.fingerprint import dtypes_of, fingerprint
from ntkgp.linalg.operator import Operator
from ntkgp.linalg.space import WHOLE, Space, normal_rows
from ntkgp.sharded import Shard, ShardedJacobian, Split, differs, opening, replicated
from ntkgp.tangent.functional import PureNetwork
from ntkgp.tangent.jacobian import Jacobian
from ntkgp.tangent.tangent import Tangent


def network_mean(x: Tensor) -> Tensor:
    """The network itself, f(x; θ0), as prior mean: pass it to ``fit(..., prior_mean=network_mean)``.

    It stands for "whatever network is being fitted"; outside of ``fit`` it has no network to call.

    Example:
        >>> import torch, ntkgp
        >>> net = ntkgp.mlp(1, width=16, generator=torch.Generator().manual_seed(0))
        >>> x, far = torch.zeros(1, 1), torch.full((1, 1), 3.0)
        >>> post = ntkgp.fit(net, x, net(x)[:, 0].detach(), noise_var=0.1, prior_mean=ntkgp.network_mean)
        >>> bool((post.predict(far).mean - net(far)[:, 0]).abs().item() < 1e-4)  # no surprise, no change
        True
    """
    raise TypeError("network_mean is a marker: pass it as prior_mean, do not call it")


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
    def trace(self) -> float:
        """The trace of G = J̃ᵀJ̃, the squared Frobenius norm of the whitened Jacobian."""
        return self._total((self.products.diag().double() * self.precision).sum())

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
        picks = torch.randperm(len(self.x), generator=generator)[:count]
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
        with tqdm(total=self.points, desc="one pass over the rows", unit="row", unit_scale=True, disable=not progress) as bar:
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
        return _evaluate_mean(self.prior_mean, x, self.outputs, self.network.dtype).flatten()

    def noise_at(self, x: Tensor, noise_var: float | Tensor | None) -> Tensor | None:
        """The noise variance of new points: the one given, else the common one of the training data, else unknown."""
        value = self.common_noise if noise_var is None else noise_var
        return None if value is None else check_noise(value, (len(x), self.outputs)).to(x.device)

    def shaped(self, values: Float[Tensor, "MC"]) -> Tensor:
        """As the user's y: (M,) or (M, C), in its dtype."""
        values = values.unflatten(0, (-1, self.outputs)).to(self.user_dtype)
        return values.squeeze(1) if self.vector_output else values


def pose(
    module: nn.Module,
    x: Tensor | Batches,
    y: Tensor | None,
    *,
    noise_var: float | Tensor,
    prior_mean: MeanFunction | None = None,
    prior_var: float | Mapping[str, float] = 1.0,
    dtype: torch.dtype | None = None,
    parameters: Iterable[str] | None = None,
    group: Group | None = None,
) -> Problem:
    """Check what the user passed and pose it as a :class:`Problem`; y = None poses zero targets (covariance only).

    With a group x and y are those of this rank, of which there may be none.
    """
    if group is None:
        first, kind = next(iter(x))[0] if isinstance(x, Batches) else x, None
    else:
        first, kind = opening(group, x, y)
    network, outputs = open_network(module, first, dtype, parameters)
    mean = mean_function(prior_mean, network, outputs)
    if isinstance(x, Batches):
        like, here, residuals = kind, None, [torch.zeros(0, dtype=network.dtype, device=network.device)]
        for part_x, part_y in x.checked(network.module, outputs):
            like, here = (part_y, part_x) if here is None else (like, here)
            residuals.append(residual_of(mean, part_x, part_y, outputs, network.dtype))
        here, residual = first[:0] if here is None else here, torch.cat(residuals)
    else:
        here, like = x, torch.zeros(len(x), outputs, dtype=network.dtype, device=network.device) if y is None else y
        if len(x) or group is None:
            check_inputs(x, network.module)
            check_targets(like, x, outputs)
            residual = residual_of(mean, x, like, outputs, network.dtype)
        else:
            residual = torch.zeros(0, dtype=network.dtype, device=network.device)
    if kind is not None:
        check_targets(kind, first[:0], outputs)
        like = kind
    assert like is not None
    noise = check_noise(noise_var, (len(residual) // outputs, outputs)).to(network.device)
    common = is_common(noise_var) if group is None else not differs(group, noise_var)
    return Problem(
        network=network,
        tangent=Tangent(network, first, outputs, prior_scales(prior_var, list(network.anchor))),
        x=here.detach().clone(),  # what the user does to x later must not reach the posterior
        residual=residual,
        noise_std=noise.to(network.dtype).sqrt().flatten(),
        prior_mean=mean,
        prior_mean_name="zero" if prior_mean is None else "network" if prior_mean is network_mean else "function",
        common_noise=check_noise(noise_var, (1, outputs)).to(network.device).clone() if common else None,
        vector_output=like.ndim == 1,
        user_dtype=like.dtype,
        module_dtypes=dtypes_of(module),
        batches=x if isinstance(x, Batches) else None,
        shard=None if group is None else Shard.of(group, len(residual) // outputs, first),
        space=WHOLE if group is None else replicated(group),
    )


def residual_of(mean: MeanFunction, x: Tensor, y: Tensor, outputs: int, dtype: torch.dtype) -> Float[Tensor, "NC"]:
    """The targets less the prior mean, flattened point-major."""
    return (y.detach().reshape(len(x), outputs).to(dtype) - _evaluate_mean(mean, x.detach(), outputs, dtype)).flatten()


def is_common(noise_var: float | Tensor) -> bool:
    """Whether the noise is the same at every point: a number, or one per output as (1, C)."""
    return not isinstance(noise_var, Tensor) or noise_var.ndim == 0 or (noise_var.ndim == 2 and len(noise_var) == 1)


def open_network(
    module: nn.Module, x: Tensor, dtype: torch.dtype | None = None, parameters: Iterable[str] | None = None
) -> tuple[PureNetwork, int]:
    """The module as a pure function of its (chosen) parameters, checked on the first points, and its number of outputs C."""
    check_module(module)
    check_inputs(x, module)
    network = PureNetwork(module, dtype, None if parameters is None else chosen_parameters(module, parameters))
    try:
        outputs = check_outputs(lambda points: network.module(network.cast(points)), network.module, x)
    except RuntimeError as error:
        raise ValueError(
            f"the module cannot be called on x of shape {tuple(x.shape)} and dtype {x.dtype} (it computes in {network.dtype}): "
            f"{error}"
        ) from error
    return network, outputs


def mean_function(prior_mean: MeanFunction | None, network: PureNetwork, outputs: int) -> MeanFunction:
    """What the user passed as prior mean, as a function of x."""
    if prior_mean is None:
        return lambda x: torch.zeros(len(x), outputs, device=x.device)
    if prior_mean is network_mean:
        return network.initial
    if callable(prior_mean):
        return prior_mean
    raise TypeError(f"prior_mean must be None, network_mean or a function of x, got {prior_mean!r}")


def _evaluate_mean(mean: MeanFunction, x: Tensor, outputs: int, dtype: torch.dtype) -> Float[Tensor, "M C"]:
    # Differentiable in x, and in nothing else: a prior mean that is a module has parameters of its own.
    with torch.set_grad_enabled(x.requires_grad and torch.is_grad_enabled()):
        value = mean(x)
    if not isinstance(value, Tensor) or value.numel() != len(x) * outputs or not value.is_floating_point():
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"prior_mean must return a floating tensor of shape ({len(x)}, {outputs}), got {got}")
    if not bool(torch.isfinite(value.detach()).all()):
        raise ValueError("prior_mean returned NaN or infinity")
    return value.reshape(len(x), outputs).to(dtype)
