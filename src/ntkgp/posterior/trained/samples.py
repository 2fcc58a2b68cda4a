"""Posterior draws from trained networks: draw from the prior, then train a copy of the network on the remaining residual."""

import torch

from ntkgp._system.check_options import check_count
from ntkgp.linalg.svd.partial_svd import PartialSVD
from ntkgp.posterior.samples import LinearSample
from ntkgp.posterior.trained.training.networks import TrainingJob
from ntkgp.posterior.trained.training.trainer import Trainer
from ntkgp.problem.problem import Problem


def draw_networks(
    problem: Problem,
    head: PartialSVD,
    trainer: Trainer,
    count: int,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> LinearSample:
    """Draw `count` functions m + Jz + M(r − Jz − ε); each M(·) is a copy of the network trained on that target.

    `head` is a partial SVD of the whitened Jacobian, of any rank; the trainer takes its step and metric from it.
    """
    check_count(count, "count", 1)
    operator, data = problem.operators.whitened, problem.data
    rows, parameters = operator.shape
    z, noise = operator.normal(parameters, count, generator), operator.normal(rows, count, generator)
    targets = (data.whitened_residual.unsqueeze(1) - operator.matmat(z) - noise) * data.noise_std.unsqueeze(1)
    networks = TrainingJob(problem, targets, ["mean"] * count, head, trainer).train(progress)
    return LinearSample(problem, z, networks=networks)
