"""The four partial SVDs on matrices with known spectra."""

import warnings

import pytest
import torch
from torch import Tensor

from ntkgp import NumericalWarning
from ntkgp.linalg import DenseSVD, Lanczos, PartialSVD, PowerIteration, RandomizedSVD
from ntkgp.linalg.operator import Operator
from ntkgp.linalg.svd.partial_svd import SVDMethod
from tests.support.helpers import seeded

SVDS = [DenseSVD(), PowerIteration(), RandomizedSVD(), Lanczos()]
_k = torch.arange(40, dtype=torch.float64)
SPECTRA = {
    "fast decay": 10 * 0.3**_k,
    "slow decay": 1 / (1 + 0.05 * _k),
    "clustered": torch.cat([torch.tensor([5, 4.999, 4.998, 4.997, 1, 0.999]).double(), 0.5 * 0.9 ** _k[:34]]),
    "repeated": torch.cat([torch.full((12,), 2.0).double(), torch.full((28,), 1.0).double()]),
    "all equal": torch.ones(40).double(),
    "rank 3": torch.cat([torch.tensor([3.0, 2.0, 1.0]).double(), torch.zeros(37).double()]),
    "zero": torch.zeros(40).double(),
}
SHAPES = [(40, 60), (60, 40), (40, 40)]

each_svd = pytest.mark.parametrize("method", SVDS, ids=lambda method: type(method).__name__)
each_spectrum = pytest.mark.parametrize("spectrum", SPECTRA)
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))


def matrix(shape: tuple[int, int], s: Tensor) -> Tensor:
    g = seeded(0)
    u, v = (torch.linalg.qr(torch.randn(size, len(s), generator=g, dtype=torch.float64)).Q for size in shape)
    return u * s @ v.T


def check_identities(a: Tensor, svd: PartialSVD, rounding: float) -> None:
    """What holds whatever the convergence: orthonormal factors, Aᵀu = s v, and the residual that is reported."""
    size = 1e-300 + float(torch.linalg.matrix_norm(a, 2))
    eye = torch.eye(svd.rank, dtype=a.dtype)
    assert (svd.u.T @ svd.u - eye).abs().max() <= rounding
    assert (svd.v.T @ svd.v - eye).abs().max() <= rounding
    assert (a.T @ svd.u - svd.v * svd.s).norm(dim=0).max() <= rounding * size
    assert ((a @ svd.v - svd.u * svd.s).norm(dim=0) - svd.residuals).abs().max() <= rounding * size
    assert bool((svd.s >= 0).all())
    assert bool((svd.s[:-1] >= svd.s[1:]).all())


@each_svd
@each_spectrum
@each_shape
@pytest.mark.parametrize("rank", [1, 5, 20, 40])
def test_finds_the_largest_triplets(method: SVDMethod, spectrum: str, shape: tuple[int, int], rank: int):
    s = SPECTRA[spectrum]
    a = matrix(shape, s)
    svd = method(Operator.of(a), rank, seeded(1))
    check_identities(a, svd, 1e-12)
    assert svd.converged
    # A residual of ρ leaves singular values that may be off by ρ, and the tolerance allows 1e-6 s₁.
    assert (svd.s - s[:rank]).abs().max() <= 1e-6 * s[0]
    assert svd.residuals.max() <= 1e-6 * s[0]


@each_svd
@pytest.mark.parametrize("shape", [(1, 20), (20, 1), (2, 3)], ids=str)
def test_tiny_matrices(method: SVDMethod, shape: tuple[int, int]):
    a = torch.randn(*shape, generator=seeded(1), dtype=torch.float64)
    svd = method(Operator.of(a), min(shape), seeded(1))
    check_identities(a, svd, 1e-13)
    torch.testing.assert_close(svd.s, torch.linalg.svdvals(a), rtol=1e-12, atol=0)


@each_svd
@each_spectrum
def test_float32(method: SVDMethod, spectrum: str):
    a = matrix((40, 60), SPECTRA[spectrum]).float()
    svd = method(Operator.of(a), 5, seeded(1))
    assert svd.u.dtype == svd.s.dtype == svd.v.dtype == torch.float32
    check_identities(a, svd, 2e-5)
    assert (svd.s - SPECTRA[spectrum][:5]).abs().max() <= 2e-5 * SPECTRA[spectrum][0]


@each_svd
def test_products_alone_are_enough(method: SVDMethod):
    """No Gram matrix at hand: the operator offers nothing but its two products."""
    a = matrix((40, 60), SPECTRA["slow decay"])
    bare = Operator(a.shape, a.matmul, a.T.matmul, a.dtype, a.device)  # pyright: ignore[reportArgumentType]
    assert (method(bare, 4, seeded(1)).s - SPECTRA["slow decay"][:4]).abs().max() <= 1e-6


@pytest.mark.parametrize("method", SVDS[1:], ids=lambda method: type(method).__name__)
def test_counts_the_products_it_makes(method: SVDMethod):
    a = matrix((40, 60), SPECTRA["slow decay"])
    counted = 0

    def count(product: Tensor) -> Tensor:
        nonlocal counted
        counted += product.shape[1]
        return product

    operator = Operator((40, 60), lambda v: count(a @ v), lambda u: count(a.T @ u), a.dtype, a.device)
    assert method(operator, 4, seeded(1)).products == counted


@each_svd
def test_the_generator_decides(method: SVDMethod):
    operator = Operator.of(matrix((40, 60), SPECTRA["slow decay"]))
    state = torch.random.get_rng_state()
    first, second = method(operator, 6, seeded(4)), method(operator, 6, seeded(4))
    assert torch.equal(first.u, second.u)
    assert torch.equal(first.s, second.s)
    assert torch.equal(first.v, second.v)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    "method", [PowerIteration(max_iterations=2), RandomizedSVD(max_iterations=1), Lanczos(max_basis=8)], ids=str
)
def test_says_when_it_has_not_converged(method: SVDMethod):
    a = matrix((40, 60), SPECTRA["slow decay"])
    with pytest.warns(NumericalWarning, match=r"residuals of .*e-.*·s₁"):
        svd = method(Operator.of(a), 6, seeded(1))
    assert not svd.converged
    assert svd.residuals.max() > 1e-6
    check_identities(a, svd, 1e-12)


def test_a_sketch_without_a_tolerance_stops_in_silence():
    a = matrix((40, 60), SPECTRA["slow decay"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svd = RandomizedSVD(power=0, tol=None)(Operator.of(a), 6, seeded(1))
    assert not svd.converged
    check_identities(a, svd, 1e-12)


def test_more_power_passes_sharpen_the_sketch():
    operator = Operator.of(matrix((40, 60), SPECTRA["slow decay"]))
    worst = [float(RandomizedSVD(power=q, tol=None)(operator, 6, seeded(1)).residuals.max()) for q in (0, 2, 8)]
    assert worst[0] > worst[1] > worst[2]


@each_svd
@pytest.mark.parametrize("rank", [0, -1, 41])
def test_rank_out_of_range(method: SVDMethod, rank: int):
    with pytest.raises(ValueError, match=r"rank must be between 1 and min\(N·C, P\) = 40"):
        method(Operator.of(matrix((40, 60), SPECTRA["fast decay"])), rank)
