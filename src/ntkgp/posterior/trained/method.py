"""The paper's method: 1 + K + T copies of the network, trained by gradient descent."""

from dataclasses import dataclass, field
from itertools import pairwise

import torch

from ntkgp._system.memory import out_of_memory
from ntkgp.distributed.group import Group
from ntkgp.linalg.svd.dense import DenseSVD
from ntkgp.linalg.svd.partial_svd import PartialSVD, SVDMethod
from ntkgp.posterior.method import Method, Run
from ntkgp.posterior.trained.covariance import CovarianceEstimate, TightCovariance
from ntkgp.posterior.trained.plan import CovariancePlan, plan_covariance
from ntkgp.posterior.trained.posterior import TrainedPosterior
from ntkgp.posterior.trained.training.accelerated import AcceleratedGD
from ntkgp.posterior.trained.training.ranks import train_on_ranks
from ntkgp.posterior.trained.training.trainer import Trainer
from ntkgp.problem.problem import Problem
from ntkgp.storage.stages import Stages
from ntkgp.storage.state import State


@dataclass(frozen=True)
class TrainedNetworks(Method):
    """The paper's method: 1 + K + T copies of the network, trained together by gradient descent.

    One copy learns y (Algorithm 1), K learn the top left singular vectors of the Jacobian and T learn random targets
    (Algorithm 2). The posterior's ``sample_networks`` trains more copies to draw functions. Cost: the partial SVD and
    (1 + K + T) trainings; memory (1 + K + T)·6·P numbers during training.

    Args:
        rank: K.
        tail: T, the paper's K′.
        svd: method that finds the singular vectors.
        trainer: optimiser that trains the copies.
        covariance: rule that combines predictors into a covariance: :class:`TightCovariance`, :class:`PaperCovariance`, or
            :class:`DrawnCovariance`, whose tail are T posterior draws: the std to √(1/2T), with a χ² bracket.

    Example:
        >>> import torch, ntkgp
        >>> g = torch.Generator().manual_seed(0)
        >>> net = ntkgp.mlp(1, width=64, generator=g)
        >>> x = torch.linspace(-1, 1, 8).unsqueeze(1)
        >>> posterior = ntkgp.fit(net, x, torch.sin(3 * x[:, 0]), noise_var=0.05, method=ntkgp.TrainedNetworks(rank=4))
        >>> p = posterior.predict(torch.tensor([[0.0], [5.0]]))
        >>> bool((p.lower <= p.variance).all() and (p.variance <= p.upper).all())
        True
    """

    rank: int = 5
    tail: int = 0
    svd: SVDMethod = field(default_factory=DenseSVD)
    trainer: Trainer = field(default_factory=AcceleratedGD)
    covariance: CovarianceEstimate = field(default_factory=TightCovariance)

    dtype = torch.float64  # for the SVD and the bracket; the copies train in the trainer's dtype

    @out_of_memory("lower rank and tail of TrainedNetworks, or give it svd=ntkgp.linalg.RandomizedSVD()")
    def fit(self, problem: Problem, run: Run | None = None) -> TrainedPosterior:
        """Find the singular vectors, train all copies, and build the posterior.

        With a group, every rank has all points and trains a share of the copies.
        """
        run = run or Run()
        identity = {} if run.checkpoint is None else problem.identity | {"method": repr(self)}
        stages = Stages(run.checkpoint, identity, run.generator, problem.network.device, run.group)
        plan, shares = self._plan(problem, stages)
        job, bracket = plan.job(self.trainer), plan.bracket()
        predictors = train_on_ranks(job, shares, stages, run.shows_progress)
        return TrainedPosterior(problem, plan, predictors, bracket, self.svd, self.trainer, run.why)

    def _plan(self, problem: Problem, stages: Stages) -> tuple[CovariancePlan, list[list[int]]]:
        """Return rank 0's training targets and the shares of the ranks; load both from the checkpoint if it has them."""
        state, double = stages.load("plan"), torch.float64
        if state is None:
            found = plan_covariance(problem, self.rank, self.tail, self.svd, self.covariance, stages.generator)
            shares = _shares(1 + self.rank + self.tail, stages.group)
            state = stages.same(State.of(svd=found.svd, z=found.z, noise=found.noise, tail=found.tail, shares=shares))
            stages.save("plan", state)
        svd = state.build(PartialSVD, "svd", double, u="NC K", s="K", v="P K", residuals="K")
        z, noise = state.tensor("z", "P Z", double), state.tensor("noise", "NC T", double)
        tail = state.tensor("tail", "NC T", double)
        return CovariancePlan(problem, svd, self.covariance, z, noise, tail), state.fact("shares", list)


def _shares(copies: int, group: Group | None) -> list[list[int]]:
    """Return [start, stop] of each share of the copies: one share per rank, about equal, none empty."""
    size = 1 if group is None else min(group.size, copies)
    edges = [copies * k // size for k in range(size + 1)]
    return [[start, stop] for start, stop in pairwise(edges)]
