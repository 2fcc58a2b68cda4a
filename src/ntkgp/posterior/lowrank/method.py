"""The matrix-free method: a head of singular directions, and ridge regressions by conjugate gradients."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ntkgp._system.check_options import check_count, check_positive, check_rank
from ntkgp._system.memory import out_of_memory
from ntkgp.linalg.cgls import CGLS
from ntkgp.linalg.svd.partial_svd import SVDMethod
from ntkgp.linalg.svd.subspace import RandomizedSVD
from ntkgp.posterior.lowrank.clock import Clock
from ntkgp.posterior.lowrank.head_search import START_RANK, HeadSearch
from ntkgp.posterior.lowrank.options import Options
from ntkgp.posterior.lowrank.posterior import LowRankPosterior
from ntkgp.posterior.lowrank.side import Normal, choose_side
from ntkgp.posterior.lowrank.solve import Solver
from ntkgp.posterior.method import Method, Run
from ntkgp.problem.problem import Problem
from ntkgp.storage.stages import Stages


@dataclass(frozen=True)
class LowRank(Method):
    """Matrix-free and linearised: stores nothing of size N×N or N×P; for a million points and more.

    The head is K singular directions of the Jacobian, and its predictors need no training. The mean and the tail are ridge
    regressions over the weights, solved together. Every variance has a certified bracket.

    Cost: about 4·N·C·P·K operations per pass for the head (a handful of passes), and 4·N·C·P per step of the solver; or, if
    cheaper, N·C·P² once to form the P×P normal matrix in one pass. Memory: the layer factors if they fit, 3·P·K numbers (and
    P² for the matrix), and one working buffer.

    Args:
        rank: K; give either `rank` or `rtol`.
        rtol: grow K until (upper − lower)/upper is at most this at `points`, or at a sample of 512 training points.
        tail: T random right-hand sides that make the variance unbiased; with 0 the variance is the upper bound.
        svd: method that finds the head. For a float32 network it computes in float32 (TF32 on GPUs), which affects only
            the choice of the subspace.
        solver: solver for the mean and the tail.
        points: query points at which `rtol` must hold.
        max_rank: largest K that `rtol` may grow to.
        dtype: dtype of the layer factors; None for the module's dtype. Products are always float64. The bracket encloses the
            posterior of the Jacobian in this dtype: use float64 if the last digits of a float32 network matter.
        side: how to compute products: ``"weights"`` with the layer factors, ``"kernel"`` with the matrix J̃J̃ᵀ in the search for
            the head (not with a group), ``"matrix"`` with the matrix G = J̃ᵀJ̃; None for the cheapest.

    Example:
        >>> import torch, ntkgp
        >>> g = torch.Generator().manual_seed(0)
        >>> net, x = ntkgp.mlp(1, width=64, generator=g), torch.linspace(-1, 1, 50).unsqueeze(1)
        >>> posterior = ntkgp.fit(net, x, torch.sin(3 * x[:, 0]), noise_var=0.05, method=ntkgp.LowRank(rank=8))
        >>> p = posterior.predict(torch.tensor([[0.0], [5.0]]))
        >>> bool((p.lower <= p.variance).all() and (p.variance <= p.upper).all())
        True
    """

    rank: int | None = None
    rtol: float | None = None
    tail: int = 0
    svd: SVDMethod = field(default_factory=lambda: RandomizedSVD(power=1, tol=None))
    solver: CGLS = field(default_factory=CGLS)
    points: Tensor | None = None
    max_rank: int = 4096
    dtype: torch.dtype | None = None
    side: str | None = None

    def __post_init__(self) -> None:
        if (self.rank is None) == (self.rtol is None):
            raise ValueError(f"give LowRank either a rank or an rtol, got rank={self.rank}, rtol={self.rtol}")
        if self.rank is not None:
            check_count(self.rank, "rank", 1)
        check_positive("LowRank", rtol=self.rtol)
        check_count(self.tail, "tail", 0)
        check_count(self.max_rank, "max_rank", 1)
        if self.side not in (None, "weights", "kernel", "matrix"):
            raise ValueError(f"side must be None, 'weights', 'kernel' or 'matrix', got {self.side!r}")

    takes_shards = True

    @out_of_memory("lower rank (or max_rank) and tail of LowRank")
    def fit(self, problem: Problem, run: Run | None = None) -> LowRankPosterior:
        """Find the head, then solve for the mean and the tail."""
        run, clock = run or Run(), Clock(problem.network.device)
        self._check(problem)
        problem = problem.split_if_needed(self.rank or self.max_rank)
        _ = problem.operators.prior_variance  # computes the factors of J(x); raises if a value is not finite
        clock("factors")
        identity = {} if run.checkpoint is None else problem.identity | {"method": repr(self)}
        stages = Stages(run.checkpoint, identity, run.generator, problem.network.device, run.group, problem.operators.space)
        generator, show = stages.generator, run.shows_progress
        # The cheapest side depends on free memory, so a resumed fit must use the side chosen at its start.
        side = stages.once("side", self.side or choose_side(problem, self.rank or START_RANK, 1 + self.tail))
        normal = Normal(problem)
        if side == "matrix":
            normal = normal.written_out(show)
            clock("matrix")
        options = Options(self.rank, self.rtol, self.max_rank, self.points, self.solver, self.svd)
        tolerance = None if self.rtol is None else options.tolerance(problem, generator)
        head, width = HeadSearch(problem, normal, self.svd, side, generator, show, stages).find(self.rank, tolerance)
        clock("head")
        found = Solver(self.solver, generator, show, stages.bookmark("solve")).mean_and_tail(normal, head, self.tail)
        clock("solve")
        return LowRankPosterior(
            problem, options, head, head.explained(), found.z, found.sides, found.solution, head.bracket.slack, side, width,
            clock.seconds,
        )  # fmt: skip

    def _check(self, problem: Problem) -> None:
        if self.rank is not None:
            check_rank(self.rank, *problem.operators.shape)
        if self.side == "kernel" and problem.data.shard is not None:
            raise ValueError(
                "side must be None, 'weights' or 'matrix' with a group, got 'kernel': no rank has the whole kernel"
            )
