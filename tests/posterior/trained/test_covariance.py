"""Head weights and tail targets: full rank is exact, the tail is unbiased."""

import pytest
import torch
from torch import Tensor

import ntkgp
from ntkgp.posterior.trained.covariance import CovarianceEstimate
from tests.support import analytic
from tests.support.cases import CASES, Case, by_name, every, reference
from tests.support.oracle import error
from tests.support.typechecker import repeated

FLOAT64 = [case for case in CASES if case.dtype == torch.float64]
each_tail_case = pytest.mark.parametrize("name", ["paper mlp", "noise per output"])


def full_rank(case: Case) -> int:
    return min(reference(case).train.shape)


@every(FLOAT64)
def test_full_rank_is_exact(case: Case):
    """Our weights, no tail: with closed-form predictors and with predictors solved for one by one."""
    truth, plan = reference(case), analytic.plan(case, ntkgp.posterior.TightCovariance(), full_rank(case))
    prior = analytic.prior(plan, case.query)
    assert error(prior - analytic.closed_form(plan, case.query).explained(), truth.covariance) <= 1e-8
    parts = analytic.solved(plan, case.query)
    assert error(prior - parts.explained(), truth.covariance) <= 1e-8
    assert error(prior.diagonal() - parts.explained_diag(), truth.variance) <= 1e-8


@every(FLOAT64)
def test_the_bracket_closes_at_full_rank(case: Case):
    """To the rounding of ‖J̃‖²: the bound allows for 256 units of it in G, and for as many in what lies outside the head."""
    truth, plan = reference(case), analytic.plan(case, ntkgp.posterior.TightCovariance(), full_rank(case))
    jacobian = plan.problem.operators.at(case.query)
    features, bracket = jacobian.matmat(plan.svd.v), plan.bracket()
    frobenius = float((truth.train.square().sum(dim=1) / truth.noise).sum())
    assert error(jacobian.diag() - features.square() @ plan.bound_weights(), truth.variance) <= 1e-8
    assert error(bracket.bracket.lower(features, jacobian.diag()), truth.variance) <= max(1e-9, 2.1 * 256 * 2**-52 * frobenius)


@every(FLOAT64)
@pytest.mark.parametrize(
    "estimate", [ntkgp.posterior.TightCovariance(), ntkgp.posterior.PaperCovariance()], ids=["ours", "paper"]
)
def test_solved_and_closed_form_predictors_agree(case: Case, estimate: CovarianceEstimate):
    """Noise that differs from point to point changes the targets, not the head: M u is J′V s/(s²+1), whitened."""
    plan = analytic.plan(case, estimate, 3)
    solved, closed = analytic.solved(plan, case.query), analytic.closed_form(plan, case.query)
    assert error(solved.head, closed.head) <= 1e-8
    assert error(solved.explained_diag(), closed.explained_diag()) <= 1e-8
    assert error(closed.explained_diag(), (plan.problem.operators.at(case.query).matmat(plan.svd.v).square()
                                           @ plan.bound_weights())) <= 1e-12  # fmt: skip


def estimates(name: str, estimate: CovarianceEstimate, draws: int, seed: int) -> Tensor:
    """`draws` independent estimates of the variance at every query, each with K = 3 and T = 10."""
    case, g = by_name(name), torch.Generator().manual_seed(seed)
    problem = analytic.posed(case)
    prior, smoother = problem.operators.at(case.query).diag(), analytic.smoother(problem, case.query)
    plans = (analytic.plan(case, estimate, 3, 10, g) for _ in repeated(range(draws)))
    return torch.stack([prior - plan.parts(smoother @ plan.targets).explained_diag() for plan in plans])


def z_scores(samples: Tensor, expected: Tensor) -> Tensor:
    return (samples.mean(dim=0) - expected).abs() / (samples.std(dim=0) / len(samples) ** 0.5)


@each_tail_case
def test_the_tail_is_unbiased(name: str):
    """The mean over 200 draws of T = 10 is within 4 standard errors of exact at every query; the head alone is not."""
    samples = estimates(name, ntkgp.posterior.TightCovariance(), 200, seed=0)
    case, head = by_name(name), analytic.plan(by_name(name), ntkgp.posterior.TightCovariance(), 3)
    without = analytic.prior(head, case.query).diagonal() - analytic.closed_form(head, case.query).explained_diag()
    assert z_scores(samples, reference(case).variance).max() <= 4
    assert z_scores(samples, without).max() > 4


@pytest.mark.parametrize("name", ["paper mlp", "two outputs"])
def test_the_papers_tail_converges_to_the_papers_expression(name: str):
    """J′J′ᵀ − PΣ²Pᵀ − σ²MMᵀ, which is not the exact covariance while K is not full."""
    truth = reference(by_name(name))
    samples = estimates(name, ntkgp.posterior.PaperCovariance(), 200, seed=1)
    expected = truth.paper_bound(3).diagonal() - truth.noise[0] * truth.smoother.square().sum(dim=1)
    assert z_scores(samples, expected).max() <= 4
    assert z_scores(samples, truth.variance).max() > 4


@each_tail_case
def test_the_error_shrinks_with_the_root_of_the_draws(name: str):
    """Means of 50 draws and of 200, from 8000 draws of T = 10: the ratio of their RMS errors is 2, known to about 10 %."""
    case, g = by_name(name), torch.Generator().manual_seed(2)
    plan = analytic.plan(case, ntkgp.posterior.TightCovariance(), 3, 80_000, g)
    parts = analytic.solved(plan, case.query)
    exact = reference(case).variance
    squares = parts.tail.square().unflatten(1, (8000, 10)).mean(dim=2)
    variance = analytic.prior(plan, case.query).diagonal() - parts.head.square() @ parts.weights
    errors = (variance.unsqueeze(1) - squares - exact.unsqueeze(1)) / squares.std(dim=1, keepdim=True)
    rms = {size: float(errors.unflatten(1, (-1, size)).mean(dim=2).square().mean().sqrt()) for size in (50, 200)}
    assert rms[50] / rms[200] == pytest.approx(2, rel=0.25)
    assert rms[50] == pytest.approx(50**-0.5, rel=0.2)


@each_tail_case
def test_the_error_shrinks_as_the_head_grows(name: str):
    case, spread = by_name(name), []
    for rank in (1, 3, 6, full_rank(case)):
        plan = analytic.plan(case, ntkgp.posterior.TightCovariance(), rank, 2000, torch.Generator().manual_seed(3))
        spread.append(float(analytic.solved(plan, case.query).tail.square().std(dim=1).sum()))
    assert spread == sorted(spread, reverse=True)
    assert spread[-1] <= 1e-9 * spread[0]


@each_tail_case
def test_tail_targets_are_orthogonal_to_the_head(name: str):
    plan = analytic.plan(by_name(name), ntkgp.posterior.TightCovariance(), 3, 20, torch.Generator().manual_seed(4))
    assert (plan.svd.u.T @ plan.tail).abs().max() <= 1e-12 * plan.tail.abs().max()


def test_tail_targets_depend_on_the_generator_alone():
    case, state = by_name("paper mlp"), torch.random.get_rng_state()
    a, b, c = (
        analytic.plan(case, ntkgp.posterior.TightCovariance(), 3, 5, torch.Generator().manual_seed(s)).tail for s in (1, 1, 2)
    )
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(torch.random.get_rng_state(), state)


@each_tail_case
def test_no_negative_variance_however_few_the_tail_predictors(name: str):
    """One tail predictor is a wild guess; predictions stay inside the bracket and covariances positive."""
    case = by_name(name)
    raw_minimum = 0.0
    for seed in range(3):
        method = ntkgp.TrainedNetworks(rank=2, tail=1, trainer=ntkgp.AcceleratedGD(tol=0.05))
        posterior = case.fit(method, generator=torch.Generator().manual_seed(seed))
        p = posterior.predict(case.query)
        assert bool((p.variance >= p.lower).all())
        assert bool((p.lower >= 0).all())
        assert bool((p.variance <= p.upper).all())
        assert torch.linalg.eigvalsh(posterior.covariance(case.query)).min() >= -1e-12 * p.upper.max()
        raw = posterior.raw_covariance(case.query)  # pyright: ignore[reportAttributeAccessIssue]
        raw_minimum = min(raw_minimum, float(torch.linalg.eigvalsh(raw).min()))
    assert raw_minimum < 0  # there was something to clip
