"""Compute everything the playground shows from its state: pure functions of plain values, independent of the browser.

A slider can change the state many times per second, so each stage is cached and computed again only if its inputs change. The
stages: the network from its settings; layer factors and grid kernel from the network; the joint kernel from the inputs of the
points; its eigenvectors. The posterior, the bracket for every K and all predictors are then products of small matrices.
"""

import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp.apps.explorer.model.state import HIGH, LOW, State
from ntkgp.networks.layers import InputScales, TrigonometricInputs
from ntkgp.networks.mlp import mlp
from ntkgp.posterior.exact.spectral import JointKernel, SpectralPosterior, Spectrum
from ntkgp.posterior.trained.covariance import PaperCovariance, TightCovariance
from ntkgp.tangent.interfaces import KernelRows, TangentKernel
from ntkgp.tangent.opening import open_network, tangent_of

GRID = 201  # number of grid points; the probe is an additional query


def network(state: State, in_features: int = 1, features: nn.Module | None = None) -> nn.Module:
    """The network of the page in float64: the input layer `features` (None for the playground's), then the paper's MLP."""
    normalisations: dict[str, tuple[nn.Module, int]] = {
        "circle": (TrigonometricInputs(LOW, HIGH), 2),
        "scaled": (InputScales(torch.full((in_features,), 1 / HIGH)), 1),
        "raw": (nn.Identity(), 1),
    }
    normalised, factor = normalisations[state.normalisation]
    generator = torch.Generator().manual_seed(state.seed)
    activation = nn.Softplus(beta=state.sharpness)  # pyright: ignore[reportArgumentType]
    width = math.inf if state.infinite else state.width
    hidden = mlp(factor * in_features, 1, width, state.depth, activation, generator=generator)
    return nn.Sequential(normalised if features is None else features, hidden).double()


@dataclass(frozen=True)
class Answer:
    """All numbers of the playground. The queries are the grid followed by the probe: M = GRID + 1."""

    x: Float[Tensor, "M"]
    prior: Float[Tensor, "M"]
    mean: Float[Tensor, "M"]
    exact: Float[Tensor, "M"]  # exact epistemic variance; all variances below are epistemic too
    variance: Float[Tensor, "M"]  # from K and T: the upper bound minus the variance explained by the tail predictors
    lower: Float[Tensor, "M"]
    upper: Float[Tensor, "M"]
    paper: Float[Tensor, "M"]  # the paper's upper bound with the same K
    samples: Float[Tensor, "S M"]
    eigenvalues: Float[Tensor, "N"]
    predictors: Float[Tensor, "M K"]  # the columns of P = M U
    tail: Float[Tensor, "N T"]  # targets of the tail predictors, in units of the noise
    points: int
    rank: int  # K in use: at most N
    notes: tuple[str, ...]
    milliseconds: float

    def error(self, variance: Float[Tensor, "M"]) -> float:
        """‖std − exact std‖ / ‖exact std‖ over the grid."""
        exact = self.exact[:GRID].sqrt()
        return float((variance[:GRID].sqrt() - exact).norm() / exact.norm().clamp_min(1e-300))


Key, Value = Hashable, TypeVar("Value")


class Memory:
    """A cache of the last value of each stage; every page has its own."""

    def __init__(self):
        self._values: dict[str, tuple[Key, object]] = {}

    def __call__(self, stage: str, key: Key, make: Callable[[], Value]) -> Value:
        """The value of a stage; computed again only if its key has changed."""
        if stage not in self._values or self._values[stage][0] != key:
            self._values[stage] = (key, make())
        return self._values[stage][1]  # pyright: ignore[reportReturnType]


def network_key(state: State) -> Key:
    """The settings that determine the network."""
    return (state.width, state.depth, state.sharpness, state.normalisation, state.seed)


def queries(state: State) -> Float[Tensor, "M 1"]:
    """The grid points followed by the probe."""
    grid = torch.linspace(LOW, HIGH, GRID, dtype=torch.float64)
    return torch.cat([grid, torch.tensor([state.probe], dtype=torch.float64)]).unsqueeze(1)


def data(state: State) -> tuple[Float[Tensor, "N 1"], Float[Tensor, "N"]]:
    """The points as tensors."""
    xy = torch.tensor(state.points, dtype=torch.float64).reshape(-1, 2)
    return xy[:, :1], xy[:, 1]


def answer(state: State, memory: Memory | None = None) -> Answer:
    """Everything the playground shows, for one state.

    Args:
        state: state of the page.
        memory: cache of the page; None to compute every stage.

    Example:
        >>> from ntkgp.apps.explorer.model.state import start
        >>> a = answer(start("paper"))
        >>> bool((a.lower <= a.exact + 1e-9).all() and (a.exact <= a.upper + 1e-9).all() and (a.upper <= a.paper + 1e-9).all())
        True
    """
    begin = time.perf_counter()
    memory = Memory() if memory is None else memory
    x, y = data(state)
    tangent = memory("tangent", network_key(state), lambda: _tangent(state))
    grid = memory("grid", (network_key(state), state.probe), lambda: _rows_and_gram(tangent.at(queries(state))))
    kernel_key = (network_key(state), state.probe, tuple(a for a, _ in state.points))
    kernel = memory("kernel", kernel_key, lambda: JointKernel.of(grid[0], tangent.at(x) if len(x) else None, grid[1]))
    spectrum = memory("spectrum", kernel_key, lambda: Spectrum.of(kernel))
    posterior, rank = SpectralPosterior(kernel, spectrum, y, state.noise_var), min(state.rank, len(x))
    lower = posterior.lower(rank)
    upper = torch.maximum(posterior.bound(TightCovariance(), rank), lower)
    targets = posterior.tail_targets(rank, state.tail, torch.Generator().manual_seed(state.seed))
    random = posterior.respond(targets * state.noise_var**0.5)
    variance = torch.clamp(upper - random.square().sum(dim=1) / max(state.tail, 1), lower, upper)
    drawn = 0 if "samples" not in state.shown else state.samples
    return Answer(
        x=queries(state)[:, 0],
        prior=kernel.prior,
        mean=posterior.mean,
        exact=posterior.variance.clamp(lower, upper),  # at full rank the three are equal; rounding must not change their order
        variance=variance,
        lower=lower,
        upper=upper,
        paper=torch.maximum(posterior.bound(PaperCovariance(), rank), upper),
        samples=posterior.sample(drawn, torch.Generator().manual_seed(state.seed + 1)) if drawn else y.new_zeros(0, len(lower)),
        eigenvalues=spectrum.values,
        predictors=posterior.predictors(rank),
        tail=targets,
        points=len(x),
        rank=rank,
        notes=_notes(state),
        milliseconds=1e3 * (time.perf_counter() - begin),
    )


def _tangent(state: State) -> TangentKernel:
    grid = queries(state)
    opened, outputs = open_network(network(state), grid)
    return tangent_of(opened, grid, outputs)


def _rows_and_gram(rows: KernelRows) -> tuple[KernelRows, Tensor]:
    return rows, rows.gram()


def _notes(state: State) -> tuple[str, ...]:
    """Hints about unusual states."""
    notes, (x, _) = [], data(state)
    if not len(x):
        notes.append("No points yet: this is the prior. Tap the plot, or type x and y and press Add point.")
    elif len(x.unique()) == 1 and len(x) > 1:
        notes.append(f"All {len(x)} points have the same x: the kernel has one direction, and the fit uses the mean y.")
    if len(x) and state.rank > len(x):
        notes.append(f"K = {state.rank} is more than N = {len(x)}: the page uses K = N.")
    return tuple(notes)
