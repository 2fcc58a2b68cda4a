"""The paper's procedures, lemmas and bounds, under its names."""

import pytest
import torch
from torch import Tensor

import ntkgp
from ntkgp import linalg
from tests.support import analytic, oracle
from tests.support.cases import CASES, Case, by_name, every, reference
from tests.support.oracle import error

# The paper's setting: one noise variance; the oracle's singular vectors assume it.
CLASSIC = [case for case in CASES if isinstance(case.noise_var, float)]
TRAINER = ntkgp.AcceleratedGD(tol=1e-5, signal=1e-5)


def check_psd(matrix: Tensor, scale: float) -> None:
    """Positive semi-definite, up to rounding beside `scale`."""
    assert torch.linalg.eigvalsh((matrix + matrix.T) / 2).min() >= -1e-11 * scale


def size(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, 2))


def bound(case: Case, estimate: ntkgp.posterior.TightCovariance | ntkgp.posterior.PaperCovariance, rank: int) -> Tensor:
    """J′J′ᵀ − P W Pᵀ with analytic predictors."""
    plan = analytic.plan(case, estimate, rank)
    return analytic.prior(plan, case.query) - analytic.closed_form(plan, case.query).explained()


@every([by_name(name) for name in ("paper mlp", "two outputs", "more points than parameters", "cnn", "transformer layer")])
@pytest.mark.parametrize(
    "svd", [linalg.DenseSVD(), linalg.PowerIteration(1e-8), linalg.RandomizedSVD(tol=1e-8), linalg.Lanczos(1e-8)],
    ids=lambda svd: type(svd).__name__,
)  # fmt: skip
def test_partial_svd_of_the_jacobian(case: Case, svd: ntkgp.linalg.DenseSVD):
    j = reference(case).train
    found = ntkgp.partial_svd(
        case.module(), case.x, 3, svd=svd, prior_var=case.prior_var, generator=torch.Generator().manual_seed(0)
    )
    u, s, _ = torch.linalg.svd(j, full_matrices=False)
    assert error(found.s, s[:3]) <= 1e-12
    # Vectors are known up to sign, and up to the residual over the gap to the next singular value.
    assert error(found.u @ found.u.T, u[:, :3] @ u[:, :3].T) <= 1e-8 * float(s[0] / (s[2] - s[3]))


@every(CLASSIC)
def test_bounds_with_k_eigenvectors(case: Case):
    """exact ⪯ ours ⪯ the paper's, at every K."""
    truth, scale = reference(case), size(reference(case).prior)
    plans = [
        analytic.plan(case, e, min(truth.train.shape))
        for e in (ntkgp.posterior.TightCovariance(), ntkgp.posterior.PaperCovariance())
    ]
    prior, parts = analytic.prior(plans[0], case.query), [analytic.closed_form(plan, case.query) for plan in plans]
    for rank in range(1, plans[0].svd.rank + 1):
        ours, papers = (prior - part.head[:, :rank] * part.weights[:rank] @ part.head[:, :rank].T for part in parts)
        check_psd(papers - ours, scale)
        check_psd(ours - truth.covariance, scale)


@every(CLASSIC)
@pytest.mark.parametrize("rank", [1, 3])
def test_bounds_equal_the_formulas(case: Case, rank: int):
    truth = reference(case)
    assert error(bound(case, ntkgp.posterior.TightCovariance(), rank), truth.our_bound(rank)) <= 1e-9
    assert error(bound(case, ntkgp.posterior.PaperCovariance(), rank), truth.paper_bound(rank)) <= 1e-9


@every(CLASSIC)
def test_ours_is_exact_when_the_rank_is_reached(case: Case):
    truth = reference(case)
    assert error(bound(case, ntkgp.posterior.TightCovariance(), truth.rank), truth.covariance) <= 1e-8


@every(CLASSIC)
def test_upper_bound_with_all_eigenvectors(case: Case):
    """The paper's bound exceeds the exact covariance by σ²MMᵀ: at most ¼λ_max(K(x′,x′)) anywhere."""
    truth = reference(case)
    excess = bound(case, ntkgp.posterior.PaperCovariance(), min(truth.train.shape)) - case.fit().covariance(case.query).double()
    expected = truth.noise[0] * truth.smoother @ truth.smoother.T
    rounding = 1e-9 if case.dtype == torch.float64 else torch.finfo(case.dtype).eps
    assert (excess - expected).norm() <= rounding * truth.prior.norm()
    assert torch.linalg.eigvalsh(excess).max() <= 0.25 * size(truth.prior)


@every([case for case in CLASSIC if case.dtype == torch.float64])
def test_upper_bound_on_the_training_set(case: Case):
    """There it exceeds the exact covariance by at most σ²I."""
    plan = analytic.plan(case, ntkgp.posterior.PaperCovariance(), min(reference(case).train.shape))
    upper = analytic.prior(plan, case.x) - analytic.closed_form(plan, case.x).explained()
    excess = upper - case.fit().covariance(case.x)
    sigma2 = float(reference(case).noise[0])
    check_psd(excess, size(upper) + sigma2)
    check_psd(sigma2 * torch.eye(len(excess)).double() - excess, size(analytic.prior(plan, case.x)) + sigma2)


PRIOR_MEANS = {"lemma 2.1, the network": ntkgp.network_mean, "lemma 2.2, zero": None, "any function": lambda x: x.sum(dim=1)}


@pytest.mark.parametrize("kind", PRIOR_MEANS)
def test_trained_mean_is_the_posterior_mean(kind: str):
    case, prior_mean = by_name("standard parametrisation"), PRIOR_MEANS[kind]
    module = case.module()
    trained = ntkgp.train_posterior_mean(module, case.x, case.y, noise_var=0.1, prior_mean=prior_mean, trainer=TRAINER)
    means = {
        "lemma 2.1, the network": (oracle.outputs(module, case.x), oracle.outputs(module, case.query)),
        "lemma 2.2, zero": None,
        "any function": (case.x.sum(dim=1), case.query.sum(dim=1)),
    }
    truth = oracle.pose(module, case.x, case.y, case.query, 0.1, prior_means=means[kind])
    assert error(ntkgp.query_posterior_mean(trained, case.query), truth.mean) <= 1e-3


def test_the_penalty_stands_for_n_times_beta():
    """The appendix writes K + βI; the minimiser is that of K + NβI = K + σ²I."""
    case = by_name("standard parametrisation")
    trained = ntkgp.train_posterior_mean(case.module(), case.x, case.y, noise_var=0.1, trainer=TRAINER)
    got = ntkgp.query_posterior_mean(trained, case.query)
    theorem, appendix = (oracle.pose(case.module(), case.x, case.y, case.query, v).mean for v in (0.1, 0.1 / len(case.x)))
    assert error(got, theorem) <= 1e-3
    assert error(got, appendix) >= 0.1


@pytest.mark.parametrize(
    "estimate", [ntkgp.posterior.PaperCovariance(), ntkgp.posterior.TightCovariance()], ids=["paper", "ours"]
)
def test_trained_covariance_is_the_bound_of_k_eigenvectors(
    estimate: ntkgp.posterior.PaperCovariance | ntkgp.posterior.TightCovariance,
):
    case = by_name("standard parametrisation")
    trained = ntkgp.train_posterior_covariance(
        case.module(), case.x, 3, noise_var=0.1, covariance=estimate, trainer=TRAINER, svd=ntkgp.linalg.Lanczos(),
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    truth = oracle.pose(case.module(), case.x, case.y, case.query, 0.1)
    expected = truth.paper_bound(3) if isinstance(estimate, ntkgp.posterior.PaperCovariance) else truth.our_bound(3)
    other = truth.our_bound(3) if isinstance(estimate, ntkgp.posterior.PaperCovariance) else truth.paper_bound(3)
    got = ntkgp.query_posterior_covariance(trained, case.query)
    assert error(got, expected) <= 1e-3
    assert error(got, other) >= 5e-3


def test_the_papers_tail_supplies_the_noise_term():
    """K′ predictors of ε ~ N(0, σ²I): with all eigenvectors and many of them, the exact covariance."""
    case = by_name("standard parametrisation")
    trained = ntkgp.train_posterior_covariance(
        case.module(), case.x, 12, noise_var=0.1, tail=400, covariance=ntkgp.posterior.PaperCovariance(),
        trainer=ntkgp.AcceleratedGD(), generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    truth = oracle.pose(case.module(), case.x, case.y, case.query, 0.1)
    got = ntkgp.query_posterior_covariance(trained, case.query)
    # 400 draws leave about a tenth of the term they estimate.
    assert (got - truth.covariance).norm() <= 0.15 * (truth.paper_bound() - truth.covariance).norm()
