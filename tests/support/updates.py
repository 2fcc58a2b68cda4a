"""Cases that come in pieces, for tests of updates."""

from dataclasses import replace

import torch
from torch import Tensor

import ntkgp
from tests.support.cases import Case
from tests.support.helpers import Method, seeded


def part(case: Case, rows: slice) -> Case:
    """The case with some of its points."""
    noise = case.noise_var[rows] if isinstance(case.noise_var, Tensor) else case.noise_var
    return replace(case, x=case.x[rows], y=case.y[rows], noise_var=noise)


def updated(posterior: ntkgp.posterior.Posterior, case: Case, rows: slice) -> ntkgp.posterior.Posterior:
    some = part(case, rows)
    noise = some.noise_var if isinstance(some.noise_var, Tensor) else None
    return posterior.update(some.x, some.y, noise_var=noise, generator=seeded(9))


def in_steps(case: Case, method: Method) -> ntkgp.posterior.Posterior:
    """Half of the points, one more, then the others."""
    half = len(case.x) // 2
    posterior = part(case, slice(0, half)).fit(method, generator=seeded())
    for rows in (slice(half, half + 1), slice(half + 1, None)):
        posterior = updated(posterior, case, rows)
    return posterior


def grid(points: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.rand(points, 2, generator=seeded(seed), dtype=torch.float64) * 2 - 1
    return x, torch.sin(3 * x[:, 0]) * x[:, 1]


def network(outputs: int = 1) -> torch.nn.Module:
    return ntkgp.mlp(2, outputs, width=32, generator=seeded(3)).double()
