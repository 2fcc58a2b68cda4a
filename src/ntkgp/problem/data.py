"""The data of a problem: training points, residuals and noise."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.check_data import check_noise
from ntkgp.distributed.shard import Shard
from ntkgp.linalg.space import normal_rows
from ntkgp.problem.batches import Batches


@dataclass(frozen=True)
class Data:
    """Training points with their residuals (targets less the prior mean) and noise. Rows are point-major, N·C of them.

    Where the points lie on several ranks, x, `residual` and `noise_std` are those of this rank; `points` and `rows` count all.
    """

    x: Tensor
    residual: Float[Tensor, "NC"]
    noise_std: Float[Tensor, "NC"]
    outputs: int  # C
    common_noise: Float[Tensor, "1 C"] | None  # where it is the same at every point
    batches: Batches | None = None  # the points, where they do not fit in memory; x is then the first batch
    arrivals: tuple[tuple[int, int], ...] = ()  # (n, times): n points arrived together, so many times; () for all at once
    shard: Shard | None = None  # where other ranks have more points

    @property
    def points(self) -> int:
        """N, of all ranks."""
        return len(self.noise_std) // self.outputs if self.shard is None else self.shard.points

    @property
    def rows(self) -> int:
        """N·C, of all ranks."""
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
        """σ; the root mean square of the σ_n when they differ."""
        return math.sqrt(self.total(self.noise_std.square().sum()) / self.rows)

    @property
    def beta(self) -> float:
        """The paper's β = σ²/N."""
        return self.noise_scale**2 / self.points

    @property
    def loss_weights(self) -> Float[Tensor, "N C"]:
        """w_n = σ²/σ_n²: how much each observation counts in the paper's loss; 1 when the noise is the same everywhere."""
        return (self.noise_scale / self.noise_std).square().unflatten(0, (-1, self.outputs))

    @property
    def few(self) -> Tensor:
        """Some training points, the same on all ranks."""
        return self.x if self.shard is None else self.shard.few

    def noise_at(self, x: Tensor, noise_var: float | Tensor | None) -> Float[Tensor, "MC"] | None:
        """The noise variance of new points: the one given, else the common one of the training data, else unknown."""
        value = self.common_noise if noise_var is None else noise_var
        return None if value is None else check_noise(value, (len(x), self.outputs)).to(x.device).flatten()

    def total(self, value: Tensor) -> float:
        """The sum of a number over all ranks."""
        return float(value) if self.shard is None else self.shard.group.total(float(value))

    def draw_points(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Some of the training points (with batches, of the first), drawn from those of all ranks."""
        if self.shard is not None:
            return self.shard.pick(self.x, count, generator)
        place = "cpu" if generator is None else generator.device
        picks = torch.randperm(len(self.x), generator=generator, device=place)[:count]
        return self.x[picks.to(self.x.device)]

    def draw_noise(self, columns: int, generator: torch.Generator | None) -> Float[Tensor, "NC S"]:
        """Standard normal noise for the rows of this rank: the same numbers for any distribution of the rows over ranks."""
        start = 0 if self.shard is None else self.shard.start * self.outputs
        here = slice(start, start + len(self.noise_std))
        return normal_rows(self.rows, here, columns, generator, self.residual.dtype, self.residual.device)
