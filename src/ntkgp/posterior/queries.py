"""Queries in chunks: the one place where query points are cut up and answers are assembled."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.memory import by_halves
from ntkgp.posterior.prediction import Prediction
from ntkgp.problem.problem import Problem

POINTS = 16384  # asked about together, where the method does not say otherwise
Flat = Float[Tensor, "MC"]


def predict_chunks(
    problem: Problem,
    x: Tensor,
    evaluate: Callable[[Tensor], tuple[Flat, Flat, Flat, Flat]],
    noise_var: float | Tensor | None,
    points: int = POINTS,
) -> Prediction:
    """The prediction at x from mean, variance, lower and upper bound of some points at a time.

    Where memory runs out, half as many points are asked about at a time. Vectors that are split over ranks are gathered once
    for all points, so that every rank takes part equally often.
    """
    x = problem.answers.checked(x)
    if problem.operators.space.spread:
        parts = [evaluate(x)]
    else:
        parts = [found for part in x.split(points)
                 for found in by_halves(lambda some, part=part: evaluate(part[some]), len(part))]  # fmt: skip
    shaped = problem.answers.shaped
    mean, variance, lower, upper = (shaped(torch.cat(column)) for column in zip(*parts, strict=True))
    noise = problem.data.noise_at(x, noise_var)
    return Prediction(mean, variance, lower, upper, None if noise is None else shaped(noise))


def mean_chunks(problem: Problem, x: Tensor, evaluate: Callable[[Tensor], Flat]) -> Tensor:
    """The mean at x, shaped as y, from that of some points at a time."""
    x = problem.answers.checked(x)
    points = len(x) if problem.operators.space.spread else POINTS
    return problem.answers.shaped(torch.cat([evaluate(part) for part in x.split(points)]))
