"""The exact method: equations (1) and (2) of the paper by one Cholesky factorisation."""

from dataclasses import dataclass

import torch

from ntkgp._system.memory import out_of_memory
from ntkgp.posterior.choice.cost import most_kernel_rows
from ntkgp.posterior.exact.posterior import ExactPosterior, kernel_form_of
from ntkgp.posterior.exact.weight_form import WeightForm
from ntkgp.posterior.method import Method, Run
from ntkgp.problem.problem import Problem


@dataclass(frozen=True)
class Exact(Method):
    """One Cholesky factorisation, over the observations (N·C × N·C) or over the weights (P × P): the exact posterior.

    Over the weights the data enters one sum, in one pass: any number of points, from memory, batches or ranks. Cost: over the
    observations (N·C)³/3 operations, over the weights N·C·P² + P³/3; memory one matrix. Computes in float64, because λ₁/σ²
    often exceeds the precision of float32, and answers in the dtype of y.

    Args:
        side: ``"kernel"`` for the matrix over the observations, ``"weights"`` for the one over the weights; None for the one
            that takes less work.
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

    side: str | None = None
    dtype: torch.dtype = torch.float64

    def __post_init__(self) -> None:
        if self.side not in (None, "kernel", "weights"):
            raise ValueError(f"side must be None, 'kernel' or 'weights', got {self.side!r}")

    @property
    def takes_shards(self) -> bool:
        """Over the weights, each rank or batch adds to one sum."""
        return self.side == "weights"

    @property
    def resumes(self) -> bool:
        """Over the weights, a checkpoint holds the sum over the points so far."""
        return self.side == "weights"

    def most_rows(self, device: torch.device) -> int:
        """Return the largest N·C whose kernel matrix fits the free memory."""
        return most_kernel_rows(device)

    @out_of_memory("use method=ntkgp.LowRank(...), or a network with fewer parameters")
    def fit(self, problem: Problem, run: Run | None = None) -> ExactPosterior:
        """Factorise once."""
        run = run or Run()
        rows, parameters = problem.operators.shape
        smaller = "kernel" if rows <= parameters or not problem.operators.has_weights else "weights"
        if (self.side or smaller) == "weights":
            form = WeightForm.of(problem, run, repr(self))
        else:
            form = kernel_form_of(problem).of(problem, progress=run.shows_progress)
        return ExactPosterior(form.problem, form, run.why)
