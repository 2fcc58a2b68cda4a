"""The data of a problem: training points, residuals and noise."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.check_data import check_noise
from ntkgp._system.locks import cached_property
from ntkgp.distributed.shard import Shard
from ntkgp.linalg.space import normal_rows
from ntkgp.problem.batches import Batches


@dataclass(frozen=True)
class Absent:
    """What is known of points that are not there."""

    points: int
    log_noise: float  # Σ log σ over their observations


@dataclass(frozen=True)
class Data:
    """Training points with their residuals (targets minus the prior mean) and noise. The N·C rows are point-major.

    With several ranks, x, `residual` and `noise_std` are rank-local; `points` and `rows` count all ranks.
    """

    x: Tensor
    residual: Float[Tensor, "NC"]
    noise_std: Float[Tensor, "NC"]
    outputs: int  # C
    common_noise: Float[Tensor, "1 C"] | None  # noise variance per output, if all points have the same
    batches: Batches | None = None  # points that do not fit in memory; x is then the first batch
    arrivals: tuple[tuple[int, int], ...] = ()  # (n, times): n points came together, `times` times; () if all came at once
    shard: Shard | None = None  # set if the points are distributed over ranks
    absent: "Absent | None" = None  # set if the posterior was fitted by a group and loaded from a file, which has no points

    @property
    def points(self) -> int:
        """N, over all ranks, and those that are absent."""
        if self.shard is not None:
            return self.shard.points
        return len(self.noise_std) // self.outputs + (0 if self.absent is None else self.absent.points)

    @cached_property
    def log_noise(self) -> float:
        """Σ log σ over all observations; with a group, all ranks must ask for it together the first time."""
        return self.total(self.noise_std.log().sum()) + (0.0 if self.absent is None else self.absent.log_noise)

    @property
    def rows(self) -> int:
        """N·C, over all ranks."""
        return self.points * self.outputs

    @property
    def whitened_residual(self) -> Float[Tensor, "NC"]:
        """The residuals in units of each observation's noise."""
        return self.residual / self.noise_std

    @cached_property
    def precision(self) -> Float[Tensor, "NC"]:
        """1/σ² of each observation, in float64."""
        return self.noise_std.double().square().reciprocal()

    @property
    def noise_scale(self) -> float:
        """σ; the root mean square of the σ_n if they differ."""
        return math.sqrt(self.total(self.noise_std.square().sum()) / self.rows)

    @property
    def beta(self) -> float:
        """The paper's β = σ²/N."""
        return self.noise_scale**2 / self.points

    @property
    def loss_weights(self) -> Float[Tensor, "N C"]:
        """w_n = σ²/σ_n²: the weight of each observation in the paper's loss; 1 if the noise is the same everywhere."""
        return (self.noise_scale / self.noise_std).square().unflatten(0, (-1, self.outputs))

    @property
    def few(self) -> Tensor:
        """A few training points, the same on all ranks."""
        return self.x if self.shard is None else self.shard.few

    def noise_at(self, x: Tensor, noise_var: float | Tensor | None) -> Float[Tensor, "MC"] | None:
        """Return the noise variance at x: the given one, or the common one of the training data; None if unknown."""
        value = self.common_noise if noise_var is None else noise_var
        return None if value is None else check_noise(value, (len(x), self.outputs)).to(x.device).flatten()

    def total(self, value: Tensor) -> float:
        """Sum a number over all ranks."""
        return float(value) if self.shard is None else self.shard.group.total(float(value))

    def draw_points(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Draw `count` training points of all ranks at random; with batches, from the first batch."""
        if self.shard is not None:
            return self.shard.pick(self.x, count, generator)
        place = "cpu" if generator is None else generator.device
        picks = torch.randperm(len(self.x), generator=generator, device=place)[:count]
        return self.x[picks.to(self.x.device)]

    def draw_noise(self, columns: int, generator: torch.Generator | None) -> Float[Tensor, "NC S"]:
        """Draw standard normal noise for the rank-local rows; a row gets the same numbers whichever rank holds it."""
        start = 0 if self.shard is None else self.shard.start * self.outputs
        here = slice(start, start + len(self.noise_std))
        return normal_rows(self.rows, here, columns, generator, self.residual.dtype, self.residual.device)
