"""Block conjugate gradients against a dense solver."""

import pytest
import torch
from torch import Tensor

import ntkgp
from ntkgp.linalg.block_cg import Block
from ntkgp.linalg.cgls import NormalSystem
from ntkgp.linalg.space import WHOLE
from tests.support.helpers import seeded
from tests.support.oracle import error

SIZE = 60


def problem(columns: int, condition: float = 1e4) -> tuple[Tensor, Tensor]:
    """A normal matrix with eigenvalues from `condition` down to 1e-2, in directions of no axis, and right-hand sides."""
    g = seeded()
    q = torch.linalg.qr(torch.randn(SIZE, SIZE, generator=g, dtype=torch.float64)).Q
    values = torch.logspace(torch.log10(torch.tensor(condition)).item(), -2, SIZE, dtype=torch.float64)
    return (q * values) @ q.T, torch.randn(SIZE, columns, generator=g, dtype=torch.float64)


def solved(gram: Tensor, c: Tensor, tol: float = 1e-11) -> tuple[Tensor, int, list[int]]:
    """The solution, the steps, and the columns of each product."""
    widths: list[int] = []

    def product(v: Tensor) -> Tensor:
        widths.append(v.shape[1])
        return gram @ v

    found = ntkgp.CGLS(tol=tol).solve(NormalSystem(product, lambda r: r), c)
    assert found.converged
    return found.x, found.iterations, widths


@pytest.mark.parametrize("columns", [1, 2, 7, 40, 80])
def test_a_block_solves_what_a_dense_solver_solves(columns: int):
    gram, c = problem(columns)
    x, steps, _ = solved(gram, c)
    assert error(x, torch.linalg.solve(gram + torch.eye(SIZE).double(), c)) <= 1e-7
    if columns >= 7:  # columns help each other: alone, one needs more steps
        assert steps < 0.6 * solved(gram, c[:, :1])[1]


def test_equal_and_zero_columns_are_solved_once():
    """A block with dependent columns must not divide by zero, nor multiply more columns than it has directions."""
    gram, c = problem(2)
    same = torch.cat([c, c[:, :1], 3 * c[:, 1:], torch.zeros(SIZE, 1).double(), c.sum(dim=1, keepdim=True)], dim=1)
    x, _, widths = solved(gram, same)
    assert error(x, torch.linalg.solve(gram + torch.eye(SIZE).double(), same)) <= 1e-7
    assert bool((x[:, 4] == 0).all())
    steps = [width for width in widths if width != 6]  # six columns: a residual is recomputed
    assert steps
    assert max(steps) <= 2


def test_columns_of_very_different_size():
    gram, c = problem(5)
    sizes = torch.logspace(-12, 12, 5, dtype=torch.float64)
    x, _, _ = solved(gram, c * sizes)
    assert error(x / sizes, torch.linalg.solve(gram + torch.eye(SIZE).double(), c)) <= 1e-7


def test_the_residuals_of_a_block_are_the_true_ones():
    """Q C is the residual of the block's own solution, step by step."""
    gram, c = problem(4, condition=100.0)
    weights = torch.linspace(0.5, 2, SIZE).double().unsqueeze(1)
    block = Block.of(torch.zeros_like(c), c, lambda r: weights * r, WHOLE)
    for _ in range(6):
        block.step(gram.matmul, lambda r: weights * r, WHOLE)
        residual = c - gram @ block.x - block.x
        torch.testing.assert_close(block.q @ block.c, residual, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(block.residuals, (residual * weights * residual).sum(dim=0).sqrt(), rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(block.q.T @ (weights * block.q), torch.eye(4).double(), rtol=0, atol=1e-9)
