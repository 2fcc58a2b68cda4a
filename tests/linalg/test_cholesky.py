"""Jitter is announced, and hopeless matrices are refused."""

import re
import warnings

import pytest
import torch

import ntkgp
from ntkgp.linalg import cholesky as module
from ntkgp.linalg.cholesky import Cholesky, cholesky

each_block = pytest.mark.parametrize("block", [1, 5, 512])


def test_no_jitter_where_none_is_needed():
    b = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = torch.eye(6, dtype=torch.float64) + b @ b.T
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        factor = cholesky(matrix)
    assert torch.equal(factor, factor.tril())
    torch.testing.assert_close(factor @ factor.T, matrix, rtol=1e-14, atol=1e-14)


@each_block
def test_factor_and_matrix_share_one_square(block: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "BLOCK", block)
    g = torch.Generator().manual_seed(0)
    b = torch.randn(13, 9, generator=g, dtype=torch.float64)
    matrix, v = torch.eye(13, dtype=torch.float64) + b @ b.T, torch.randn(13, 3, generator=g, dtype=torch.float64)
    square = matrix.tril() + torch.full_like(matrix, torch.nan).triu(1)  # only the lower triangle is read
    found, dense = Cholesky.of(square), torch.linalg.cholesky(matrix)
    assert found.square is square
    torch.testing.assert_close(found.square.tril(), dense)
    torch.testing.assert_close(found.matrix(), matrix)
    torch.testing.assert_close(found.product(v), matrix @ v)
    torch.testing.assert_close(found.half_solve(v), torch.linalg.solve_triangular(dense, v, upper=False))
    torch.testing.assert_close(found.back_solve(v), torch.linalg.solve_triangular(dense.T, v, upper=True))
    torch.testing.assert_close(found.solve(v), torch.linalg.solve(matrix, v))
    torch.testing.assert_close(found.lower_product(v.T), v.T @ dense.T)
    torch.testing.assert_close(found.upper_product(v), dense.T @ v)
    assert found.log_determinant == pytest.approx(float(torch.logdet(matrix)), rel=1e-13)


@each_block
def test_a_matrix_that_fails_late_is_restored_and_shifted(block: int, monkeypatch: pytest.MonkeyPatch):
    """The factorisation stops in the middle; the matrix is still whole, and the second attempt starts from it."""
    monkeypatch.setattr(module, "BLOCK", block)
    q = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).Q
    matrix = q * torch.cat([torch.full((11,), 1e10), torch.tensor([-2e-3])]).double() @ q.T
    matrix = (matrix + matrix.T) / 2
    with pytest.warns(ntkgp.NumericalWarning, match="singular to working precision"):
        found = Cholesky.of(matrix.clone())
    assert found.jitter > 2e-3
    torch.testing.assert_close(found.matrix(), matrix, rtol=0, atol=0)
    factor = found.square.tril()
    expected = matrix + found.jitter * torch.eye(12).double()
    torch.testing.assert_close(factor @ factor.T, expected, rtol=1e-14, atol=1e-5)


def test_jitter_warns_with_the_amount_added():
    # 1e18 beside the identity: rounding makes the all-ones kernel indefinite.
    b = 1e9 * torch.rand(12, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    matrix = torch.eye(12, dtype=torch.float64) + b @ b.T
    matrix[1, 0] = matrix[0, 1] = matrix[0, 1] * (1 + 1e-15)
    assert torch.linalg.cholesky_ex(matrix).info > 0
    with pytest.warns(ntkgp.NumericalWarning) as caught:
        factor = cholesky(matrix)
    message = str(caught[0].message)
    amount = re.search(r"at this noise_var: (\S+) times the noise variance", message)
    assert amount is not None
    added = (factor @ factor.T - matrix).diagonal().mean()
    assert float(amount.group(1)) == pytest.approx(float(added), rel=0.2)
    assert "raise noise_var" in message


@pytest.mark.parametrize(
    "bad", [torch.diag(torch.tensor([1.0, -1.0])), torch.full((2, 2), torch.nan)], ids=["indefinite", "nan"]
)
def test_hopeless_matrices_raise(bad: torch.Tensor):
    with pytest.raises(ValueError, match="expected a positive definite matrix"):
        cholesky(bad.double())


def test_noise_below_rounding_is_announced_by_fit():
    """A kernel of 1e16 beside a noise variance of 1e-8, twelve times the same point."""
    net = ntkgp.mlp(1, width=8, output_scale=1e8, generator=torch.Generator().manual_seed(0)).double()
    x = torch.linspace(0.1, 1.0, 4).double().repeat(6).unsqueeze(1)
    with pytest.warns(ntkgp.NumericalWarning, match="singular to working precision"):
        p = ntkgp.fit(net, x, x[:, 0].sin(), noise_var=1e-8).predict(x)
    assert bool(torch.isfinite(p.mean).all())
    assert bool((p.variance >= 0).all())


def test_the_least_jitter_that_helps_is_taken():
    """An eigenvalue of −2e-3 beside one of 1e10, whose rounding is 2.2e-6: a thousand times that is needed, and no more."""
    q = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).Q
    matrix = q * torch.tensor([1e10, 5.0, 3.0, 1.0, -2e-3]).double() @ q.T
    matrix = (matrix + matrix.T) / 2
    with pytest.warns(ntkgp.NumericalWarning, match=r"2\.2e-03 times the noise variance"):
        factor = cholesky(matrix)
    assert torch.linalg.matrix_norm(factor @ factor.T - matrix, 2) == pytest.approx(2.2e-3, rel=0.05)
