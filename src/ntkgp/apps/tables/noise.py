"""Noise variances of a table: one per group of rows, or estimated from rows that a first fit has not seen."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ntkgp.apps.tables.options import TableOptions
from ntkgp.posterior.interface import Posterior
from ntkgp.problem.build import build_problem
from ntkgp.problem.source import Source
from ntkgp.tuning.group_noise import group_noise
from ntkgp.tuning.result import Tuned


def group_variances(
    tuned: Tuned,
    data: tuple[Tensor, Tensor],
    members: Int[Tensor, "N"],
    start: Float[Tensor, "G C"],
    options: TableOptions,
) -> Float[Tensor, "G C"]:
    """The noise variance of each group and target for a fixed kernel, from at most `points` rows times targets."""
    (x, y), outputs = data, start.shape[1]
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(options.seed))
    chosen = chosen[: max(1, options.points // outputs)].to(x.device)
    source = Source(x[chosen], y[chosen])
    problem = build_problem(tuned.module, source, prior_var=tuned.prior_var, dtype=torch.float64)
    groups = (outputs * members[chosen].unsqueeze(1) + torch.arange(outputs, device=x.device)).flatten()
    kernel, residual = problem.operators.rows.gram(), problem.data.residual
    return group_noise(kernel, residual, groups, start.to(x.device).flatten()).view(-1, outputs)


def noise_on_new_rows(posterior: Posterior, x: Tensor, y: Tensor) -> Float[Tensor, "1 C"]:
    """The noise variance of each target, from rows the posterior has not seen: mean of squared error − epistemic variance.

    Tuning uses few rows, and some of them also trained the features, which biases its noise. New rows have no such bias; what
    the networks are too small to fit then counts as noise.
    """
    p = posterior.predict(x)
    assert p.noise_var is not None
    errors = (y - p.mean).double().square() - p.variance.double()
    floor = 0.01 * p.noise_var[:1].double()
    return torch.maximum(errors.mean(dim=0, keepdim=True), floor).reshape(1, -1)
