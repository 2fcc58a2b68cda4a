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
    confidence: float = 1.0,
) -> Prediction:
    """Predict at x in chunks; `evaluate` returns mean, variance, lower and upper bound (at this confidence) of one chunk.

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
    mean, *columns = (torch.cat(column) for column in zip(*parts, strict=True))
    noise = problem.data.noise_at(x, noise_var)
    return Prediction(
        shaped(mean), **bracketed(problem, *columns), noise_var=None if noise is None else shaped(noise), confidence=confidence
    )


def bracketed(problem: Problem, variance: Flat, lower: Flat, upper: Flat) -> dict[str, Tensor]:
    """Give a variance and its bracket the shape and dtype of y; the bracket is rounded outwards."""
    shaped = problem.answers.shaped
    bounds = shaped(lower), shaped(upper)
    if bool((lower < upper).any()):  # otherwise there is one exact variance, without a bracket
        bounds = _outwards(bounds[0], lower, -torch.inf), _outwards(bounds[1], upper, torch.inf)
    return {"variance": shaped(variance), "lower": bounds[0], "upper": bounds[1]}


def _outwards(bound: Tensor, exact: Flat, away: float) -> Tensor:
    """Move a bound that was rounded to the dtype of y towards the inside one number towards `away`, but not below zero."""
    if bound.dtype == exact.dtype:
        return bound
    inside = (bound.to(exact.dtype) - exact.view_as(bound)) * away < 0
    moved = torch.nextafter(bound.detach(), torch.full_like(bound, away)).clamp_min(0)
    return torch.where(inside, bound + (moved - bound.detach()), bound)


def mean_chunks(problem: Problem, x: Tensor, evaluate: Callable[[Tensor], Flat]) -> Tensor:
    """Evaluate the mean at x in chunks; the result has the shape of y."""
    x = problem.answers.checked(x)
    points = len(x) if problem.operators.space.spread else POINTS_PER_CHUNK
    return problem.answers.shaped(torch.cat([evaluate(part) for part in x.split(points)]))
