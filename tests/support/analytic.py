"""Algorithm 2 with predictors that need no training: what trained networks tend to."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

import ntkgp
from ntkgp.linalg.svd.partial_svd import PartialSVD, SVDMethod
from ntkgp.posterior.trained.covariance import CovarianceEstimate, CovarianceParts
from ntkgp.posterior.trained.plan import CovariancePlan, plan_covariance
from ntkgp.posterior.trained.predictors import Predictors
from ntkgp.problem.build import build_problem
from ntkgp.problem.problem import Problem
from ntkgp.problem.source import Source
from ntkgp.tangent.tangent import Tangent
from tests.support.cases import Case, by_name


@dataclass(frozen=True)
class LinearPredictors(Predictors):
    """Predictors of the linearised network: J(x) w. Cost: 2·M·C·P·S operations."""

    tangent: Tangent
    weights: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """M t at the points x, a column per target."""
        return torch.cat([self.tangent.at(part).matmat(self.weights) for part in x.split(8192)])

    def __getitem__(self, which: slice) -> "LinearPredictors":
        """Some of them."""
        return LinearPredictors(self.tangent, self.weights[:, which])


def head_predictors(problem: Problem, svd: PartialSVD) -> LinearPredictors:
    """The predictors of the singular vectors, which need no training: θ*_i − θ0 = V_i s_i/(s_i² + 1), whitened."""
    return LinearPredictors(problem.operators.finite, svd.v * (svd.s / (svd.s.square() + 1)))


def analytic_predictors(problem: Problem, targets: Tensor) -> LinearPredictors:
    """M t by a dense solve, for any (whitened) targets. Memory: (N·C)² numbers; for small problems and as a reference."""
    matrix = problem.operators.gram()
    matrix.diagonal().add_(1.0)
    weights = problem.operators.whitened.rmatmat(torch.linalg.solve(matrix, targets))
    return LinearPredictors(problem.operators.finite, weights)


@cache
def _posed(name: str) -> Problem:
    case = by_name(name)
    return build_problem(
        case.module(), Source(case.x, case.y, case.noise_var), prior_mean=case.prior_mean, prior_var=case.prior_var,
        dtype=torch.float64,
    )  # fmt: skip


def posed(case: Case) -> Problem:
    return _posed(case.name)


def plan(
    case: Case,
    estimate: CovarianceEstimate,
    rank: int,
    tail: int = 0,
    generator: torch.Generator | None = None,
    svd: SVDMethod | None = None,
) -> CovariancePlan:
    return plan_covariance(posed(case), rank, tail, svd or ntkgp.linalg.DenseSVD(), estimate, generator)


def smoother(problem: Problem, x: Tensor) -> Tensor:
    """M, which takes targets to what their predictors answer at x."""
    return analytic_predictors(problem, torch.diag(1 / problem.data.noise_std))(x)


def solved(plan: CovariancePlan, x: Tensor) -> CovarianceParts:
    """Predictors of all targets, by a dense solve."""
    problem = plan.problem
    return plan.parts(analytic_predictors(problem, plan.targets / problem.data.noise_std.unsqueeze(1))(x))


def closed_form(plan: CovariancePlan, x: Tensor) -> CovarianceParts:
    """Predictors of the singular vectors, from the SVD alone; they are those of targets of unit length, not of length σ."""
    return plan.parts(head_predictors(plan.problem, plan.svd)(x) / plan.problem.data.noise_scale)


def prior(plan: CovariancePlan, x: Tensor) -> Tensor:
    return plan.problem.operators.at(x).gram()
