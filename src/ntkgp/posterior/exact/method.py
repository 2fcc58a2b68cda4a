"""The exact method: equations (1) and (2) of the paper by one Cholesky factorisation."""

import math
from dataclasses import dataclass

import torch

from ntkgp.posterior.exact.factorise import factorise_problem
from ntkgp.posterior.exact.posterior import ExactPosterior
from ntkgp.posterior.method import Method, Run
from ntkgp.problem.problem import Problem


@dataclass(frozen=True)
class Exact(Method):
    """Dense kernel and Cholesky: the exact posterior, for N·C up to a few ten thousand.

    Cost: (N·C)³/3 operations and 2·(N·C)² numbers. Computes in float64, because λ₁/σ² often
    exceeds the precision of float32, and answers in the dtype of y.

    Args:
        dtype: the dtype to compute in; float32 only for modules or devices that cannot do float64.

    Example:
        >>> import torch, ntkgp
        >>> g = torch.Generator().manual_seed(0)
        >>> net = ntkgp.mlp(1, width=64, generator=g)
        >>> x = torch.linspace(-1, 1, 5).unsqueeze(1)
        >>> posterior = ntkgp.fit(net, x, torch.sin(3 * x[:, 0]), noise_var=0.01, method=ntkgp.Exact())
        >>> posterior.predict(torch.tensor([[0.0], [5.0]])).std.round(decimals=2)
        tensor([ 0.1000, 11.3800])
    """

    dtype: torch.dtype = torch.float64

    resumes = False

    def most_rows(self, device: torch.device) -> int:
        """Return the largest N·C for the default method: seconds of work, and three matrices in at most half of a GPU."""
        if device.type != "cuda":
            return 8_000
        return min(30_000, math.isqrt(torch.cuda.get_device_properties(device).total_memory // (2 * 3 * 8)))

    def fit(self, problem: Problem, run: Run | None = None) -> ExactPosterior:
        """Factorise K(x, x) + σ²I once."""
        return ExactPosterior(problem, *factorise_problem(problem))
