"""A problem with more data: the first step of every ``posterior.update``."""

from dataclasses import replace

import torch
from torch import Tensor

from ntkgp._system.check_data import check_noise, check_sizes, check_targets
from ntkgp.problem.prior_mean import residual_of
from ntkgp.problem.problem import Problem
from ntkgp.problem.source import Source, UserData, as_tensor_or_batches


def extend_problem(
    problem: Problem, x: UserData, y: Tensor | None, noise_var: float | Tensor | None
) -> tuple[Problem, Problem]:
    """Return the problem with the new data after the old, and the problem of the new data alone.

    The network is not checked again. Cost: the factors of the new points, and a copy of the old points and targets.
    """
    x, y = Source(as_tensor_or_batches(x, y, problem.network.device), y).tensors()
    old, C = problem.data, problem.outputs
    x = problem.answers.checked(x).detach()
    check_targets(y, x, C)
    noise_var = old.common_noise if noise_var is None else noise_var
    if noise_var is None:
        raise ValueError(
            f"noise_var is missing: in fit the noise differed from point to point, so the noise of the {len(x)} new point(s) "
            f"is unknown; pass a number, or a tensor of shape ({len(x)},), (1, {C}) or ({len(x)}, {C})"
        )
    noise = check_noise(noise_var, (len(x), C)).to(problem.network.device)
    residual = residual_of(problem.answers.prior_mean, x, y, C, problem.network.dtype)
    noise_std = noise.sqrt().to(problem.network.dtype).flatten()
    check_sizes(residual, noise_std)
    same = old.common_noise is not None and bool((noise == old.common_noise).all())
    dtype = torch.promote_types(old.x.dtype, x.dtype)  # a table of whole numbers may grow by other numbers
    new_data = replace(
        old,
        x=x.to(dtype, copy=True),  # a copy: the user may change x later
        residual=residual,
        noise_std=noise_std,
        common_noise=old.common_noise if same else None,
        batches=None,
        arrivals=(),
    )
    new = problem.with_data(new_data)
    _ = new.operators.prior_variance  # raises if it is not finite
    batches = old.batches
    whole = replace(
        new_data,
        x=torch.cat([old.x.to(dtype), new_data.x]) if batches is None else old.x,
        residual=torch.cat([old.residual, residual]),
        noise_std=torch.cat([old.noise_std, noise_std]),
        batches=None if batches is None else batches.followed_by(new_data.x, y.detach().clone()),
        arrivals=() if batches is not None else _with_arrival(old.arrivals or ((old.points, 1),), len(x)),
    )
    return problem.with_data(whole, known_rows=problem.operators.rows.extended(new.operators.rows)), new


def check_updatable(problem: Problem) -> None:
    """Raise if the points of a problem are on several ranks, or were, before it was saved."""
    if problem.data.shard is not None or problem.data.absent is not None:
        raise ValueError(
            "update needs all data in one process, but this posterior was fitted by a group; call fit again with all data"
        )


def _with_arrival(arrivals: tuple[tuple[int, int], ...], count: int) -> tuple[tuple[int, int], ...]:
    """Append an arrival of `count` points; consecutive arrivals of the same size share one entry."""
    *before, (size, times) = arrivals
    return (*before, (size, times + 1)) if size == count else (*arrivals, (count, 1))
