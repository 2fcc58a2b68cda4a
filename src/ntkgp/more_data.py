"""A regression problem with more data: what every ``posterior.update`` begins with."""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from ntkgp._checks import check_noise, check_sizes, check_targets
from ntkgp.batches import Batches
from ntkgp.prior_mean import residual_of
from ntkgp.problem import Problem

Data = Tensor | Iterable[tuple[Tensor, Tensor]]


def with_more(problem: Problem, x: Data, y: Tensor | None, noise_var: float | Tensor | None) -> tuple[Problem, Problem]:
    """The problem with the new data behind the old, and that of the new data alone; the network is not looked at again.

    Cost: the factors of the new points, and a copy of the old points and targets.
    """
    x, y = _data(problem, x, y)
    x, C = problem.checked(x).detach(), problem.outputs
    check_targets(y, x, C)
    noise_var = problem.common_noise if noise_var is None else noise_var
    if noise_var is None:
        raise ValueError(
            f"noise_var is missing: the noise of the fit differed from point to point, so that of the {len(x)} new point(s) is "
            f"not known; pass a number, or a tensor of shape ({len(x)},), (1, {C}) or ({len(x)}, {C})"
        )
    noise = check_noise(noise_var, (len(x), C)).to(problem.network.device)
    residual = residual_of(problem.prior_mean, x, y, C, problem.network.dtype)
    noise_std = noise.sqrt().to(problem.network.dtype)
    check_sizes(residual, noise_std.flatten())
    same = problem.common_noise is not None and bool((noise == problem.common_noise).all())
    new = replace(
        problem,
        x=x.to(problem.x.dtype, copy=True),  # what the user does to x later must not reach the posterior
        residual=residual,
        noise_std=noise_std.flatten(),
        common_noise=problem.common_noise if same else None,
        batches=None, parts=(), known_jacobian=None, matrix=None,
    )  # fmt: skip
    _ = new.prior_variance  # finite, or it says where not
    batches = problem.batches
    whole = replace(
        new,
        x=torch.cat([problem.x, new.x]) if batches is None else problem.x,
        residual=torch.cat([problem.residual, new.residual]),
        noise_std=torch.cat([problem.noise_std, new.noise_std]),
        batches=None if batches is None else batches.followed_by(new.x, y.detach().clone()),
        parts=() if batches is not None else _counted(problem.parts or ((problem.points, 1),), len(x)),
        known_jacobian=problem.jacobian.extended(new.jacobian),
    )
    return whole, new


def _data(problem: Problem, x: Data, y: Tensor | None) -> tuple[Tensor, Tensor]:
    """As tensors, whatever they came in."""
    if isinstance(x, Tensor):
        if y is None:
            raise ValueError("y is missing; pass the new targets, or x as an iterable of (x, y) batches")
        return x, y
    if y is not None or not isinstance(x, Iterable):
        kind = type(x).__name__
        raise TypeError(f"x must be a torch.Tensor, got {kind}; use torch.as_tensor(x), or pass (x, y) batches and no y")
    return Batches(x, problem.network.device).joined()


def _counted(parts: tuple[tuple[int, int], ...], count: int) -> tuple[tuple[int, int], ...]:
    """One part more, like parts counted together."""
    *before, (size, times) = parts
    return (*before, (size, times + 1)) if size == count else (*parts, (count, 1))
