"""lower ≤ exact ≤ upper, for converged, unconverged and random subspaces."""

import pytest
import torch
from torch import Tensor

import ntkgp
from ntkgp.linalg.head import Head
from ntkgp.linalg.operator import Operator
from ntkgp.linalg.svd.partial_svd import PartialSVD
from tests.support import oracle
from tests.support.cases import CASES, Case, every, reference

SPECTRA = {
    "fast": 30 * 0.4 ** torch.arange(15, dtype=torch.float64),
    "slow": 10 / (1 + torch.arange(15, dtype=torch.float64)),
    "strong": 1e4 / (1 + torch.arange(15, dtype=torch.float64)),
    "flat": torch.full((15,), 3.0, dtype=torch.float64),
    "rank 3": torch.cat([torch.tensor([9.0, 4.0, 0.5]), torch.zeros(12)]).double(),
}
REFEREE = 1e-13  # relative rounding of the exact variance that the bounds are held against
ROUNDING = 1e-11  # how much rounding may widen an upper bound, relative to the prior variance


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def orthonormal(rows: int, columns: int, seed: int) -> Tensor:
    return torch.linalg.qr(random(rows, columns, seed=seed)).Q


def exact_variance(a: Tensor, query: Tensor) -> Tensor:
    """The diagonal of Q (I + AᵀA)⁻¹ Qᵀ, by the SVD of A: no difference of large numbers."""
    _, s, vt = torch.linalg.svd(a, full_matrices=True)
    shrunk = torch.ones(a.shape[1], dtype=torch.float64)
    shrunk[: len(s)] = 1 / (1 + s.square())
    return (query @ vt.T).square() @ shrunk


def ritz(a: Tensor, w: Tensor) -> PartialSVD:
    """The best triplets with left vectors in the span of w."""
    x, s, yt = torch.linalg.svd(w.T @ a, full_matrices=False)
    u, v = w @ x, yt.T
    return PartialSVD(u, s, v, (a @ v - u * s).norm(dim=0), converged=False, products=0)


def subspace(a: Tensor, kind: str, rank: int) -> PartialSVD:
    """A head of a: its singular vectors, those disturbed by 1e-3, the result of a few products, or anything at all."""
    u, s, vt = torch.linalg.svd(a, full_matrices=False)
    if kind == "converged":
        return PartialSVD(u[:, :rank], s[:rank], vt[:rank].T, torch.zeros(rank), converged=True, products=0)
    if kind == "disturbed":
        return ritz(a, torch.linalg.qr(u[:, :rank] + 1e-3 * random(len(a), rank, seed=5)).Q)
    if kind == "sketch":
        return ntkgp.linalg.RandomizedSVD(oversample=0, power=0, tol=None)(
            Operator.of(a), rank, torch.Generator().manual_seed(3)
        )
    return ritz(a, orthonormal(len(a), rank, seed=7))


def bounds(a: Tensor, svd: PartialSVD, query: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper bound on the variance of `query`, from the right vectors alone."""
    head = Head.of(lambda v: a.T @ (a @ v), svd.v, a.T @ (a @ svd.v), float(a.square().sum()))
    prior = query.square().sum(dim=1)
    return head.bracket.lower(query @ head.v, prior), head.upper(query @ head.image, prior)


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("kind", ["converged", "disturbed", "sketch", "random"])
@pytest.mark.parametrize("shape", [(15, 25), (25, 15)], ids=["wide", "tall"])
@pytest.mark.parametrize("rank", [1, 3, 8, 15])
def test_encloses_the_exact_variance(spectrum: str, kind: str, shape: tuple[int, int], rank: int):
    n, m = shape
    a = orthonormal(n, 15, 1) * SPECTRA[spectrum] @ orthonormal(m, 15, 2).T
    # Queries everywhere: in the row space of a, in its head, orthogonal to it.
    query = torch.cat([random(6, m, seed=3), a[:4], orthonormal(m, 15, 2).T[:3]])
    exact = exact_variance(a, query)
    svd = subspace(a, kind, rank)
    lower, upper = bounds(a, svd, query)
    prior = query.square().sum(dim=1)
    assert bool((lower >= 0).all())
    assert bool((lower <= exact * (1 + REFEREE)).all())
    assert bool((exact * (1 - REFEREE) <= upper).all())
    assert bool((upper <= prior * (1 + ROUNDING)).all())


@pytest.mark.parametrize("shape", [(15, 25), (25, 15)], ids=["wide", "tall"])
@pytest.mark.parametrize("rank", [3, 5, 15])
def test_closes_at_full_rank(shape: tuple[int, int], rank: int):
    n, m = shape
    a = orthonormal(n, 15, 1) * SPECTRA["rank 3"] @ orthonormal(m, 15, 2).T
    query = random(6, m, seed=3)
    exact = exact_variance(a, query)
    svd = subspace(a, "converged", rank)
    lower, upper = bounds(a, svd, query)
    assert oracle.error(lower, exact) <= 1e-10
    assert oracle.error(upper, exact) <= 1e-10


def test_narrows_as_the_head_grows():
    a = orthonormal(15, 15, 1) * SPECTRA["slow"] @ orthonormal(25, 15, 2).T
    query = random(6, 25, seed=3)
    widths = []
    for rank in (1, 4, 8, 12, 15):
        lower, upper = bounds(a, subspace(a, "converged", rank), query)
        widths.append(float((upper - lower).sum()))
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] <= 1e-10 * widths[0]


@pytest.mark.filterwarnings("ignore:.*networks stopped after 3 steps")
@every([case for case in CASES if case.dtype == torch.float64])
def test_a_posterior_reports_a_bracket_around_the_exact_variance(case: Case):
    """Through the front door, where training is cut short: its error may not move the variance out of the bracket."""
    truth = reference(case)
    method = ntkgp.TrainedNetworks(rank=2, trainer=ntkgp.Adam(lr=1e-2, max_steps=3))
    p = case.fit(method, generator=torch.Generator().manual_seed(0)).predict(case.query)
    slack = 1e-12 * truth.prior.diagonal()  # the oracle is a difference from the prior variance
    assert bool((p.lower.flatten() <= truth.variance + slack).all())
    assert bool((truth.variance <= p.upper.flatten() + slack).all())
    assert bool((p.lower <= p.variance).all())
    assert bool((p.variance <= p.upper).all())
