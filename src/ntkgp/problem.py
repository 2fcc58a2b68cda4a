"""The regression problem after the door: checked, in one dtype, residuals and noise ready, J(x) as an operator."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn

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
from ntkgp.fingerprint import dtypes_of
from ntkgp.linalg.operator import Operator
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
    """y = m(x) + J(x)Δ + noise, Δ ~ N(0, I). Rows are point-major; `noise_std` and `residual` have N·C entries."""

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
    parts: tuple[tuple[int, int], ...] = ()  # (n, times): the points came n at a time, so often; () for all at once
    known_jacobian: Jacobian | None = None  # where most of it was there already

    @property
    def points(self) -> int:
        """N."""
        return len(self.noise_std) // self.outputs

    @property
    def outputs(self) -> int:
        """C."""
        return self.tangent.outputs

    @cached_property
    def jacobian(self) -> Jacobian:
        """J(x) at the training points, its layer factors kept."""
        if self.known_jacobian is not None:
            return self.known_jacobian
        if (batches := self.batches) is not None:
            return self.tangent.over(lambda: (x for x, _ in batches), self.points)
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
        return math.sqrt(float(self.noise_std.square().mean()))

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
        std, jacobian = self.noise_std.unsqueeze(1), self.jacobian
        return Operator(
            shape=jacobian.shape,
            matmat=lambda v: jacobian.matmat(v) / std,
            rmatmat=lambda u: jacobian.rmatmat(u / std),
            dtype=self.network.dtype,
            device=self.network.device,
            gram=lambda: jacobian.kernel() / (std * std.T),
        )

    @cached_property
    def precision(self) -> Float[Tensor, "NC"]:
        """1/σ² of each observation, in float64."""
        return self.noise_std.double().square().reciprocal()

    @cached_property
    def trace(self) -> float:
        """The trace of G = J̃ᵀJ̃, the squared Frobenius norm of the whitened Jacobian."""
        return float((self.jacobian.diag().double() * self.precision).sum())

    @cached_property
    def kernel(self) -> Float[Tensor, "NC NC"]:
        """K̃ = J̃J̃ᵀ, written out in float64."""
        assert self.whitened.gram is not None
        return self.whitened.gram().double()

    def normal(self, v: Float[Tensor, "P S"]) -> Float[Tensor, "P S"]:
        """G v = J̃ᵀJ̃ v in the dtype of v: one pass over the points, nothing of size N×S."""
        return self.jacobian.normal(v, self.precision.to(v.dtype))

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
) -> Problem:
    """Check what the user passed and pose it as a :class:`Problem`; y = None poses zero targets (covariance only)."""
    first = next(iter(x))[0] if isinstance(x, Batches) else x
    network, outputs = open_network(module, first, dtype, parameters)
    mean = mean_function(prior_mean, network, outputs)
    if isinstance(x, Batches):
        parts = [(part_y, residual_of(mean, part_x, part_y, outputs, network.dtype))
                 for part_x, part_y in x.checked(network.module, outputs)]  # fmt: skip
        like, residual = parts[0][0], torch.cat([r for _, r in parts])
    else:
        like = torch.zeros(len(x), outputs, dtype=network.dtype, device=network.device) if y is None else y
        check_targets(like, x, outputs)
        residual = residual_of(mean, x, like, outputs, network.dtype)
    noise = check_noise(noise_var, (len(residual) // outputs, outputs)).to(network.device)
    return Problem(
        network=network,
        tangent=Tangent(network, first, outputs, prior_scales(prior_var, list(network.anchor))),
        x=first.detach().clone(),  # what the user does to x later must not reach the posterior
        residual=residual,
        noise_std=noise.to(network.dtype).sqrt().flatten(),
        prior_mean=mean,
        prior_mean_name="zero" if prior_mean is None else "network" if prior_mean is network_mean else "function",
        common_noise=noise[:1].clone() if is_common(noise_var) else None,
        vector_output=like.ndim == 1,
        user_dtype=like.dtype,
        module_dtypes=dtypes_of(module),
        batches=x if isinstance(x, Batches) else None,
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
