"""Algorithm 2 with predictors that need no training: what trained networks tend to."""

from functools import cache

import torch
from torch import Tensor

import ntkgp
from ntkgp.covariance import CovarianceEstimate, CovarianceParts, CovariancePlan, plan_covariance
from ntkgp.linalg.svd import SVDMethod
from ntkgp.pose import pose
from ntkgp.predictors import analytic_predictors, head_predictors
from ntkgp.problem import Problem
from tests.support.cases import Case, by_name


@cache
def _posed(name: str) -> Problem:
    case = by_name(name)
    return pose(
        case.module(), case.x, case.y, noise_var=case.noise_var, prior_mean=case.prior_mean, prior_var=case.prior_var,
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
    return plan_covariance(posed(case), rank, tail, svd or ntkgp.DenseSVD(), estimate, generator)


def smoother(problem: Problem, x: Tensor) -> Tensor:
    """M, which takes targets to what their predictors answer at x."""
    return analytic_predictors(problem, torch.diag(1 / problem.noise_std))(x)


def solved(plan: CovariancePlan, x: Tensor) -> CovarianceParts:
    """Predictors of all targets, by a dense solve."""
    problem = plan.problem
    return plan.parts(analytic_predictors(problem, plan.targets / problem.noise_std.unsqueeze(1))(x))


def closed_form(plan: CovariancePlan, x: Tensor) -> CovarianceParts:
    """Predictors of the singular vectors, from the SVD alone; they are those of targets of unit length, not of length σ."""
    return plan.parts(head_predictors(plan.problem, plan.svd)(x) / plan.problem.noise_scale)


def prior(plan: CovariancePlan, x: Tensor) -> Tensor:
    return plan.problem.tangent.at(x).kernel()
