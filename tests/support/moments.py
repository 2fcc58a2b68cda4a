"""Moments of many draws against those they should have, in standard errors."""

from dataclasses import replace

import torch
from torch import Tensor

import ntkgp
from tests.support import oracle
from tests.support.cases import Case, by_name
from tests.support.helpers import seeded


def bound(entries: int) -> float:
    """How many standard errors the largest of so many may be off: chance exceeds it once in a thousand runs (Bonferroni)."""
    return float(torch.special.ndtri(torch.tensor(1 - 0.5e-3 / entries, dtype=torch.float64)))


def z_scores(values: Tensor, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Errors of the sample mean and of the sample covariance about the known mean, in their standard errors."""
    n, off = len(values), values - mean
    variance = covariance.diagonal()
    spread = (variance.unsqueeze(0) * variance.unsqueeze(1) + covariance.square()).sqrt()
    return off.mean(dim=0) / (variance / n).sqrt(), (off.T @ off / n - covariance) / (spread / n**0.5)


def narrow(name: str) -> tuple[Case, oracle.Oracle]:
    """A case with few parameters and points, so that 10⁵ solves are quick; and the oracle's view of it."""
    case = by_name(name)
    noise = case.noise_var[:6] if isinstance(case.noise_var, Tensor) else case.noise_var
    case = replace(
        case, build=lambda: ntkgp.mlp(2, case.outputs, width=4, depth=1, generator=seeded(7)), x=case.x[:6], y=case.y[:6],
        query=case.query[2:7], noise_var=noise,
    )  # fmt: skip
    module = case.module()
    means = (oracle.outputs(module, case.x), oracle.outputs(module, case.query)) if case.prior_mean else None
    return case, oracle.pose(module, case.x, case.y, case.query, noise, prior_means=means)
