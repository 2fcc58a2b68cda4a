"""CGLS against a dense solver."""

import pytest
import torch

import ntkgp
from ntkgp.linalg.cgls import NormalSystem
from tests.support.oracle import error


@pytest.mark.parametrize("columns", [1, 3])
def test_cgls_solves_what_a_dense_solver_solves(columns: int):
    g = torch.Generator().manual_seed(0)
    a = torch.randn(40, 25, generator=g, dtype=torch.float64) * torch.logspace(3, -2, 25, dtype=torch.float64)
    c = torch.randn(25, columns, generator=g, dtype=torch.float64)
    gram = a.T @ a
    solution = ntkgp.CGLS(tol=1e-12).solve(NormalSystem(lambda v: gram @ v, lambda r: r), c)
    assert solution.converged
    assert error(solution.x, torch.linalg.solve(gram + torch.eye(25).double(), c)) <= 1e-8


def test_cgls_says_when_it_stops_early():
    gram = torch.diag(torch.logspace(0, 6, 30, dtype=torch.float64))
    with pytest.warns(ntkgp.NumericalWarning, match="after 3 iterations"):
        solution = ntkgp.CGLS(tol=1e-10, max_iterations=3).solve(
            NormalSystem(gram.matmul, lambda r: r), torch.ones(30, 1).double()
        )
    assert not solution.converged
