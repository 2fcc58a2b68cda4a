"""The training targets of Algorithm 2."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.check_options import check_count, check_rank
from ntkgp.linalg.bracket import rounded_up
from ntkgp.linalg.head import Head
from ntkgp.linalg.svd.partial_svd import PartialSVD, SVDMethod
from ntkgp.posterior.trained.covariance import CovarianceEstimate, CovarianceParts
from ntkgp.posterior.trained.training.networks import TrainingJob
from ntkgp.posterior.trained.training.trainer import Trainer
from ntkgp.problem.problem import Problem
from ntkgp.tangent.jacobian import Jacobian


@dataclass(frozen=True)
class CovariancePlan:
    """The targets of Algorithm 2 (K singular vectors, then T random targets) and the weights that combine the predictors."""

    problem: Problem
    svd: PartialSVD
    estimate: CovarianceEstimate
    z: Float[Tensor, "P Z"]  # weights drawn from the prior for the tail
    noise: Float[Tensor, "NC T"]  # observation noise drawn for the tail
    tail: Float[Tensor, "NC T"]  # targets of the tail, whitened

    @property
    def targets(self) -> Float[Tensor, "NC S"]:
        """Targets in the units of y: the columns of U, then the targets of the tail."""
        data = self.problem.data
        std = data.noise_std.unsqueeze(1)
        return torch.cat([self.svd.u * (std / data.noise_scale), self.tail * std], dim=1)

    def job(self, trainer: Trainer) -> TrainingJob:
        """Return the training of all 1 + K + T copies: the first on the residuals (Algorithm 1), the others on `targets`."""
        targets = torch.cat([self.problem.data.residual.unsqueeze(1), self.targets], dim=1)
        return TrainingJob(self.problem, targets, ["mean"] + ["covariance"] * (targets.shape[1] - 1), self.svd, trainer)

    def parts(self, values: Float[Tensor, "M S"]) -> CovarianceParts:
        """Split the evaluated predictors of `targets` into head and tail, and add the weights of the head."""
        head, tail = values.split([self.svd.rank, self.tail.shape[1]], dim=1)
        return CovarianceParts(head, self.problem.data.noise_scale**2 * self.estimate.head_weights(self.svd.s), tail)

    def bound_weights(self) -> Float[Tensor, "K"]:
        """Return the weights of (J′V)² in the upper bound of the estimate; the predictors of the head are J′V s/(s²+1)."""
        s = self.svd.s
        return self.estimate.head_weights(s) * (s / (s.square() + 1)).square()

    def drawn(self, rows: Jacobian, parts: CovarianceParts) -> tuple[Float[Tensor, "M K"], Float[Tensor, "M T"]]:
        """Return columns whose products are the covariance of the head and, with T draws, an estimate of the rest.

        Along a singular vector the posterior std is φ/√(s² + 1) with φ = J′V; the trained predictor is φs/(s² + 1), which says
        the same wherever the data says more than the prior, s > 1. A draw of the rest is J′(I − VVᵀ)z minus its predictor.
        """
        s, v, sigma = self.svd.s, self.svd.v, self.problem.data.noise_scale
        features, ground = rows.matmat(torch.cat([v, self.z - v @ (v.T @ self.z)], dim=1)).split(
            [self.svd.rank, self.z.shape[1]], dim=1
        )
        trained = sigma * parts.head * ((s.square() + 1).sqrt() / s.clamp_min(1))
        head = torch.where(s > 1, trained, features * (s.square() + 1).rsqrt())
        return head, (ground - parts.tail) / max(self.tail.shape[1], 1) ** 0.5

    def upper(self, features: Float[Tensor, "M K"], prior: Float[Tensor, "M"], head: Head) -> Float[Tensor, "M"]:
        """Return the upper bound of the estimate from J′V; `head` has the rounding that it allows for."""
        answer = torch.linalg.vector_norm(features / (self.svd.s.square() + 1), dim=1)
        explained = features.square() @ self.bound_weights()
        return rounded_up(prior - explained, answer, prior + explained, head.rounding, head.unit)

    def bracket(self) -> Head:
        """Compute the certified bracket of this head."""
        v, operators = self.svd.v, self.problem.operators
        return Head.of(operators.normal, v, operators.normal(v), operators.trace, unit=self.problem.network.unit)

    def extended(self, problem: Problem, svd: SVDMethod, generator: torch.Generator | None = None) -> "CovariancePlan":
        """Return the plan for a problem with more data: the same K, and the same draws with noise for the new points."""
        operator, (rows, T) = problem.operators.whitened, self.noise.shape
        found = svd(operator, self.svd.rank, generator)
        noise = torch.cat([self.noise, operator.normal(operator.shape[0] - rows, T, generator)])
        tail = self.estimate.tail_targets(operator, found, self.z, noise)
        return CovariancePlan(problem, found, self.estimate, self.z, noise, tail)


def plan_covariance(
    problem: Problem,
    rank: int,
    tail: int,
    svd: SVDMethod,
    estimate: CovarianceEstimate,
    generator: torch.Generator | None = None,
) -> CovariancePlan:
    """Compute the partial SVD of the whitened Jacobian and draw the random targets of the tail."""
    check_rank(rank, *problem.operators.shape)
    check_count(tail, "tail", 0)
    operator = problem.operators.whitened
    found, (rows, parameters) = svd(operator, rank, generator), operator.shape
    z = operator.normal(parameters, tail if estimate.draws_weights else 0, generator)
    noise = operator.normal(rows, tail, generator)
    return CovariancePlan(problem, found, estimate, z, noise, estimate.tail_targets(operator, found, z, noise))
