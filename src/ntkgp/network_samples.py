"""Posterior draws from trained networks: draw from the prior, then let a copy of the network learn what is left."""

import torch

from ntkgp._checks import check_count
from ntkgp.linalg.svd import PartialSVD
from ntkgp.posterior import FunctionSample
from ntkgp.predictors import train_predictors
from ntkgp.problem import Problem
from ntkgp.training import Trainer


def draw_networks(
    problem: Problem,
    head: PartialSVD,
    trainer: Trainer,
    count: int,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> FunctionSample:
    """`count` functions m + Jz + M(r − Jz − ε), each M(·) by a copy of the network trained to that target.

    `head` is a partial SVD of the whitened Jacobian, of any rank: it gives the trainer its step and metric.
    """
    check_count(count, "count", 1)
    operator, std = problem.whitened, problem.noise_std.unsqueeze(1)
    rows, parameters = operator.shape
    z, noise = operator.normal(parameters, count, generator), operator.normal(rows, count, generator)
    targets = (problem.whitened_residual.unsqueeze(1) - operator.matmat(z) - noise) * std
    return FunctionSample(problem, z, networks=train_predictors(problem, targets, ["mean"] * count, head, trainer, progress))
