"""A Cholesky factor that grows by rows is the factor of the whole matrix."""

import pytest
import torch

from ntkgp.linalg.cholesky import Cholesky
from ntkgp.linalg.growing_cholesky import GrowingCholesky
from tests.support.helpers import seeded


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 40, 2), (200,), (5, 150)])
def test_a_growing_factor_is_the_dense_one(sizes: tuple[int, ...]):
    n = 20 + sum(sizes)
    b = torch.randn(n, n, generator=seeded(), dtype=torch.float64)
    a = b @ b.T + torch.eye(n).double()
    grown, start = GrowingCholesky.of(Cholesky.of(a[:20, :20].clone())), 20
    for size in sizes:
        more = grown.extended(a[start : start + size, :start], a[start : start + size, start : start + size])
        assert more is not None
        grown, start = more, start + size
    dense, rhs = torch.linalg.cholesky(a), b[:, :3]
    assert len(grown) == n
    torch.testing.assert_close(grown.dense(), dense, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(grown.diagonal(), dense.diagonal())
    torch.testing.assert_close(grown.half_solve(rhs), torch.linalg.solve_triangular(dense, rhs, upper=False))
    torch.testing.assert_close(grown.solve(rhs), torch.cholesky_solve(rhs, dense))
    torch.testing.assert_close(grown.inverse_diagonal, torch.linalg.inv(a).diagonal())
