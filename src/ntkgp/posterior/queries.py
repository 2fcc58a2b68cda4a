"""Queries in chunks: split the query points, evaluate each chunk, and join the answers."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.memory import by_halves
from ntkgp.posterior.prediction import Prediction
from ntkgp.problem.problem import Problem

POINTS_PER_CHUNK = 16384  # query points evaluated together, unless the method passes another number
Flat = Float[Tensor, "MC"]


def predict_chunks(
    problem: Problem,
    x: Tensor,
    evaluate: Callable[[Tensor], tuple[Flat, Flat, Flat, Flat]],
    noise_var: float | Tensor | None,
    points: int = POINTS_PER_CHUNK,
) -> Prediction:
    """Predict at x in chunks; `evaluate` returns mean, variance, lower and upper bound of one chunk.

    If memory runs out, the chunk is halved. Vectors that are split over ranks are gathered once for all points, because
    every rank must call the collective operations equally often.
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
    """Evaluate the mean at x in chunks; the result has the shape of y."""
    x = problem.answers.checked(x)
    points = len(x) if problem.operators.space.spread else POINTS_PER_CHUNK
    return problem.answers.shaped(torch.cat([evaluate(part) for part in x.split(points)]))
