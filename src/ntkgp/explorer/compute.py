"""From a state to everything the playground shows: pure functions of plain values, nothing of the browser.

A page changes its mind many times a second, so what a change does not touch is not computed again: the network follows
from its settings, the layer factors and the kernel of the grid from the network, that of the points from their inputs, and
with its eigenvectors the posterior, the bracket at every K and all predictors are products of small matrices.
"""

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

import ntkgp
from ntkgp.explorer.state import HIGH, LOW, State
from ntkgp.linalg.head import Head
from ntkgp.linalg.operator import Operator
from ntkgp.linalg.svd import PartialSVD
from ntkgp.pose import open_network
from ntkgp.tangent.jacobian import Jacobian
from ntkgp.tangent.tangent import Tangent

GRID = 201  # points of the grid; the probe is one more


def network(state: State, in_features: int = 1, features: nn.Module | None = None) -> nn.Module:
    """The network of the settings in float64: `features` of the inputs (None: the playground's), then the paper's MLP."""
    normalisations: dict[str, tuple[nn.Module, int]] = {
        "circle": (ntkgp.TrigonometricInputs(LOW, HIGH), 2),
        "scaled": (ntkgp.InputScales(torch.full((in_features,), 1 / HIGH)), 1),
        "raw": (nn.Identity(), 1),
    }
    normalised, factor = normalisations[state.normalisation]
    generator = torch.Generator().manual_seed(state.seed)
    activation = nn.Softplus(beta=state.sharpness)  # pyright: ignore[reportArgumentType]
    mlp = ntkgp.mlp(factor * in_features, 1, state.width, state.depth, activation, generator=generator)
    return nn.Sequential(normalised if features is None else features, mlp).double()


@dataclass(frozen=True)
class Kernels:
    """The prior covariance JJᵀ of the M queries and the N training points as one matrix, queries first."""

    joint: Float[Tensor, "Q Q"]
    points: int

    @classmethod
    def of(cls, tangent: Tangent, known: tuple[Jacobian, Tensor], x: Float[Tensor, "N 1"]) -> "Kernels":
        """With what is `known` of the queries already: J(x′) and its kernel."""
        seen, joint = known
        if len(x):
            jacobian = tangent.at(x)
            cross = seen.kernel(jacobian)
            joint = torch.cat([torch.cat([joint, cross], dim=1), torch.cat([cross.T, jacobian.kernel()], dim=1)])
        return cls(joint, len(x))

    @property
    def train(self) -> Float[Tensor, "N N"]:
        """K(x, x)."""
        queries = len(self.joint) - self.points
        return self.joint[queries:, queries:]

    @property
    def cross(self) -> Float[Tensor, "M N"]:
        """K(x′, x)."""
        queries = len(self.joint) - self.points
        return self.joint[:queries, queries:]

    @property
    def prior(self) -> Float[Tensor, "M"]:
        """The diagonal of K(x′, x′)."""
        return self.joint.diagonal()[: len(self.joint) - self.points]

    @cached_property
    def root(self) -> Float[Tensor, "Q Q"]:
        """A matrix R with R Rᵀ = the joint covariance."""
        values, vectors = torch.linalg.eigh(self.joint)
        return vectors * values.clamp_min(0).sqrt()


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues λ of K(x, x), decreasing, its eigenvectors U and how the queries see them."""

    values: Float[Tensor, "N"]
    vectors: Float[Tensor, "N N"]
    seen: Float[Tensor, "M N"]  # K(x′, x) U

    @classmethod
    def of(cls, kernels: Kernels) -> "Spectrum":
        """The whole spectrum; N is small here."""
        values, vectors = torch.linalg.eigh(kernels.train)
        values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
        return cls(values, vectors, kernels.cross @ vectors)


@dataclass(frozen=True)
class Answer:
    """All numbers of the playground. Queries are the grid and, last, the probe: M = GRID + 1."""

    x: Float[Tensor, "M"]
    prior: Float[Tensor, "M"]
    mean: Float[Tensor, "M"]
    exact: Float[Tensor, "M"]  # variances, all of them epistemic
    variance: Float[Tensor, "M"]  # of K and T: the upper bound, less what the tail predictors explain
    lower: Float[Tensor, "M"]
    upper: Float[Tensor, "M"]
    paper: Float[Tensor, "M"]  # the paper's upper bound at the same K
    samples: Float[Tensor, "S M"]
    eigenvalues: Float[Tensor, "N"]
    predictors: Float[Tensor, "M K"]  # the columns of P = M U
    tail: Float[Tensor, "N T"]  # targets of the tail predictors, in units of the noise
    points: int
    rank: int  # K in use: never more than N
    notes: tuple[str, ...]
    milliseconds: float

    def error(self, variance: Float[Tensor, "M"]) -> float:
        """‖std − exact std‖ / ‖exact std‖ over the grid."""
        exact = self.exact[:GRID].sqrt()
        return float((variance[:GRID].sqrt() - exact).norm() / exact.norm().clamp_min(1e-300))


Key, Value = Hashable, TypeVar("Value")


class Memory:
    """The last value of each stage and what it was made from; one of these belongs to each page."""

    def __init__(self):
        self._kept: dict[str, tuple[Key, object]] = {}

    def __call__(self, stage: str, key: Key, make: Callable[[], Value]) -> Value:
        """The value of a stage, made anew only when its key is another one."""
        if stage not in self._kept or self._kept[stage][0] != key:
            self._kept[stage] = (key, make())
        return self._kept[stage][1]  # pyright: ignore[reportReturnType]


def network_key(state: State) -> Key:
    """What the network depends on."""
    return (state.width, state.depth, state.sharpness, state.normalisation, state.seed)


def queries(state: State) -> Float[Tensor, "M 1"]:
    """The grid, and the probe."""
    grid = torch.linspace(LOW, HIGH, GRID, dtype=torch.float64)
    return torch.cat([grid, torch.tensor([state.probe], dtype=torch.float64)]).unsqueeze(1)


def data(state: State) -> tuple[Float[Tensor, "N 1"], Float[Tensor, "N"]]:
    """The points as tensors."""
    xy = torch.tensor(state.points, dtype=torch.float64).reshape(-1, 2)
    return xy[:, :1], xy[:, 1]


def answer(state: State, memory: Memory | None = None) -> Answer:
    """Everything the playground shows, for one state.

    Args:
        state: what the page is set to.
        memory: of the page, so that only what changed is computed; None for a first time.

    Example:
        >>> from ntkgp.explorer.state import start
        >>> a = answer(start("paper"))
        >>> bool((a.lower <= a.exact + 1e-9).all() and (a.exact <= a.upper + 1e-9).all() and (a.upper <= a.paper + 1e-9).all())
        True
    """
    begin = time.perf_counter()
    memory = Memory() if memory is None else memory
    x, y = data(state)
    tangent = memory("tangent", network_key(state), lambda: _tangent(state))
    known = memory("grid", (network_key(state), state.probe), lambda: _jacobian_and_kernel(tangent.at(queries(state))))
    kernel_key = (network_key(state), state.probe, tuple(a for a, _ in state.points))
    kernels = memory("kernels", kernel_key, lambda: Kernels.of(tangent, known, x))
    spectrum = memory("spectrum", kernel_key, lambda: Spectrum.of(kernels))
    rank, noise = min(state.rank, len(x)), state.noise_var
    weights = 1 / (spectrum.values + noise)
    mean = spectrum.seen @ (weights * (spectrum.vectors.T @ y))
    exact = (kernels.prior - spectrum.seen.square() @ weights).clamp_min(0)
    lower, upper, paper = bounds(kernels.prior, spectrum, rank, noise)
    targets = tail_targets(spectrum, rank, state.tail, noise, torch.Generator().manual_seed(state.seed))
    random = (spectrum.seen * weights) @ (spectrum.vectors.T @ (targets * noise**0.5))
    variance = torch.clamp(upper - random.square().sum(dim=1) / max(state.tail, 1), lower, upper)
    drawn = samples(kernels, spectrum, y, state) if "samples" in state.shown else mean.new_zeros(0, len(mean))
    return Answer(
        x=queries(state)[:, 0],
        prior=kernels.prior,
        mean=mean,
        exact=exact.clamp(lower, upper),  # the three meet at full rank: rounding must not turn them around
        variance=variance,
        lower=lower,
        upper=upper,
        paper=torch.maximum(paper, upper),
        samples=drawn,
        eigenvalues=spectrum.values,
        predictors=(spectrum.seen * weights)[:, :rank],
        tail=targets,
        points=len(x),
        rank=rank,
        notes=_notes(state),
        milliseconds=1e3 * (time.perf_counter() - begin),
    )


def _tangent(state: State) -> Tangent:
    grid = queries(state)
    opened, outputs = open_network(network(state), grid)
    return Tangent(opened, grid, outputs)


def _jacobian_and_kernel(jacobian: Jacobian) -> tuple[Jacobian, Tensor]:
    return jacobian, jacobian.kernel()


def bounds(
    prior: Float[Tensor, "M"], spectrum: Spectrum, rank: int, noise: float
) -> tuple[Float[Tensor, "M"], Float[Tensor, "M"], Float[Tensor, "M"]]:
    """Lower and upper bound on the variance with K directions kept, and the paper's upper bound.

    The library's own bracket (:class:`ntkgp.linalg.head.Head`) and weights, given exact singular vectors: no coupling, and the
    first eigenvalue left out bounds the rest.
    """
    values = spectrum.values / noise
    predictors = spectrum.seen[:, :rank] / (spectrum.values[:rank] + noise)
    s = values[:rank].sqrt()
    upper = prior - predictors.square() @ (noise * ntkgp.TightCovariance().head_weights(s))
    paper = prior - predictors.square() @ (noise * ntkgp.PaperCovariance().head_weights(s))
    # Directions that J does not see to working precision (as of repeated points) belong to the rest.
    eps = torch.finfo(prior.dtype).eps
    kept = int((values[:rank] > 1e2 * eps * values[:1]).sum())
    rest = values[kept:].max() if kept < len(values) else values.new_zeros(())
    nothing = prior.new_zeros(0, kept)
    head = Head(nothing, nothing, values[:kept], 0.0, float(rest) + 10 * eps * float(values.sum()))
    lower = head.lower(spectrum.seen[:, :kept] * spectrum.values[:kept].rsqrt(), prior)
    return lower, torch.maximum(upper, lower), paper


def tail_targets(spectrum: Spectrum, rank: int, tail: int, noise: float, generator: torch.Generator) -> Float[Tensor, "N T"]:
    """The library's targets (I − UUᵀ)(Jz + σε)/σ, with the symmetric root of K in the place of J: the same distribution."""
    s = (spectrum.values / noise).sqrt()
    u = spectrum.vectors
    head = PartialSVD(u[:, :rank], s[:rank], u[:, :rank], torch.zeros_like(s[:rank]), True, 0)
    z, draws = (torch.randn(len(u), tail, dtype=u.dtype, generator=generator) for _ in range(2))
    return ntkgp.TightCovariance().tail_targets(Operator.of((u * s) @ u.T), head, z, draws)


def samples(kernels: Kernels, spectrum: Spectrum, y: Float[Tensor, "N"], state: State) -> Float[Tensor, "S M"]:
    """Posterior functions by Matheron's rule: a prior draw, corrected by what it gets wrong at the points."""
    generator = torch.Generator().manual_seed(state.seed + 1)
    shape = {"dtype": kernels.joint.dtype, "generator": generator}
    prior = kernels.root @ torch.randn(len(kernels.joint), state.samples, **shape)
    noise = state.noise_var**0.5 * torch.randn(kernels.points, state.samples, **shape)
    queries = len(prior) - kernels.points
    surprise = spectrum.vectors.T @ (y.unsqueeze(1) - prior[queries:] - noise)
    weights = 1 / (spectrum.values + state.noise_var)
    return (prior[:queries] + (spectrum.seen * weights) @ surprise).T


def _notes(state: State) -> tuple[str, ...]:
    """What a person should know about this state."""
    notes, (x, _) = [], data(state)
    if not len(x):
        notes.append("No points yet: this is the prior. Tap the plot, or add a point by its numbers.")
    elif len(x.unique()) == 1 and len(x) > 1:
        notes.append(f"All {len(x)} points have the same x: one direction of the kernel is seen, and their mean counts.")
    if len(x) and state.rank > len(x):
        notes.append(f"K = {state.rank} is more than N = {len(x)}: every direction there is is kept.")
    return tuple(notes)
