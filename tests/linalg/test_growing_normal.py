"""A normal matrix that grows by rows is the whole normal matrix."""

import pytest
import torch
from torch import Tensor

from ntkgp.linalg import cholesky, growing_normal
from ntkgp.linalg.cholesky import Cholesky
from ntkgp.linalg.growing_normal import GrowingNormal
from tests.support.helpers import seeded

P = 30


def first() -> Tensor:
    b = torch.randn(40, P, generator=seeded(), dtype=torch.float64)
    return torch.eye(P, dtype=torch.float64) + b.T @ b


def more(count: int, seed: int) -> Tensor:
    return torch.randn(count, P, generator=seeded(seed), dtype=torch.float64)


@pytest.mark.parametrize("merge_at", [1, 4, 1000])
@pytest.mark.parametrize("block", [7, 512])
def test_a_growing_normal_matrix_is_the_dense_one(merge_at: int, block: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cholesky, "BLOCK", block)
    monkeypatch.setattr(growing_normal, "MIN_MERGE", merge_at)
    monkeypatch.setattr(growing_normal, "MERGE_FRACTION", 10**9)
    dense, grown = first(), GrowingNormal.of(Cholesky.of(first()))
    for k, count in enumerate((1, 3, 5, 2)):
        rows = more(count, k + 1)
        grown = grown.extended(rows) if grown.takes(count) else grown.merged(rows.T @ rows)
        dense = dense + rows.T @ rows
    assert grown.count == {1: 0, 4: 2, 1000: 11}[merge_at]
    rhs = more(4, 9).T
    torch.testing.assert_close(grown.solve(rhs), torch.linalg.solve(dense, rhs), rtol=1e-11, atol=1e-13)
    half = grown.half(rhs)
    torch.testing.assert_close(half.T @ half, rhs.T @ torch.linalg.solve(dense, rhs), rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(grown.product(rhs), dense @ rhs)
    assert grown.log_determinant == pytest.approx(float(torch.logdet(dense)), rel=1e-13)
    torch.testing.assert_close(grown.merged().base.matrix(), dense)
    order = torch.randperm(P, generator=seeded(3))
    torch.testing.assert_close(grown.merged(order=order).base.matrix(), dense[order][:, order])


def test_draws_have_the_inverse_as_covariance():
    """With rows beside the factor, whose noise enters the draws."""
    grown, rows, count = GrowingNormal.of(Cholesky.of(first())), 30 * more(6, 1), 40_000
    dense, grown = first() + rows.T @ rows, grown.extended(rows)
    assert grown.count == 6
    g = seeded(2)
    drawn = grown.draw(*(torch.randn(size, count, generator=g, dtype=torch.float64) for size in (P, 6)))
    expected = torch.linalg.inv(dense)
    scale = expected.diagonal().sqrt()
    off = (drawn @ drawn.T / count - expected).abs() / (scale.unsqueeze(0) * scale.unsqueeze(1))
    assert float(off.max()) <= 5 * (2 / count) ** 0.5


def test_earlier_versions_stay():
    grown = GrowingNormal.of(Cholesky.of(first()))
    before = grown.solve(more(2, 5).T)
    grown.extended(more(3, 1)).extended(more(3, 2))
    assert torch.equal(grown.solve(more(2, 5).T), before)
