"""The matrix-free method: a head of singular directions, and ridge regressions solved by conjugate gradients."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ntkgp._system.check_options import check_count, check_positive, check_rank
from ntkgp._system.memory import out_of_memory
from ntkgp.linalg.cgls import CGLS
from ntkgp.linalg.svd.partial_svd import SVDMethod
from ntkgp.linalg.svd.subspace import RandomizedSVD
from ntkgp.posterior.lowrank.clock import Clock
from ntkgp.posterior.lowrank.head_search import START_RANK, HeadSearch, saved_head
from ntkgp.posterior.lowrank.options import Options
from ntkgp.posterior.lowrank.posterior import LowRankPosterior
from ntkgp.posterior.lowrank.side import Normal, choose_side
from ntkgp.posterior.lowrank.solve import must_split, right_hand_sides, warn_if_rounded
from ntkgp.posterior.method import Method, Run
from ntkgp.problem.problem import Problem
from ntkgp.storage.stages import Stages


@dataclass(frozen=True)
class LowRank(Method):
    """Matrix-free and linearised: nothing of size N×N or N×P, up to a million points and more.

    The head is K singular directions of the Jacobian, whose predictors need no training; the mean and the tail are ridge
    regressions in weight space, solved together. Every variance comes with its certified bracket.

    Cost: some 4·N·C·P·K operations a pass for the head (a handful of passes), and 4·N·C·P a step of the solver; or, where that
    is less, N·C·P² once, to write out the P×P normal matrix in one pass. Memory: the layer factors if they fit, 3·P·K numbers
    (and P² for the matrix), and one working set.

    Args:
        rank: K; or give `rtol`.
        rtol: grow K until (upper − lower)/upper is below this at the training inputs (a sample of 512) or at `points`.
        tail: T random right-hand sides that make the variance unbiased; 0 returns the upper bound.
        svd: how the head is found. For a float32 network its passes are made in float32 (TF32 on GPUs), which only steers the
            subspace.
        solver: how the mean and the tail are found.
        points: where `rtol` is to hold.
        max_rank: where `rtol` stops growing K.
        dtype: of the layer factors; None keeps the module's. Products are float64 whatever it is, and the bracket encloses the
            posterior of the Jacobian in this dtype: float64 where the last digits of a float32 network matter.
        side: how products are made: ``"weights"`` by the factors, ``"kernel"`` with J̃J̃ᵀ written out to look for the head (not
            with a group), ``"matrix"`` with G = J̃ᵀJ̃ written out; None for whichever is cheapest.

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
        if must_split(problem, self.rank or self.max_rank):
            problem = problem.split()
        space = problem.operators.space
        _ = problem.operators.prior_variance  # the factors of J(x) are computed here: finite, or an error says where not
        clock("factors")
        identity = {} if run.checkpoint is None else problem.identity | {"method": repr(self)}
        stages = Stages(run.checkpoint, identity, run.generator, problem.network.device, run.group, space)
        generator, show = stages.generator, run.shows_progress
        # The cheapest side depends on free memory, which may have changed since a fit that is resumed was started.
        side = stages.once("side", self.side or choose_side(problem, self.rank or START_RANK, 1 + self.tail))
        normal = Normal(problem)
        if side == "matrix":
            normal = normal.written_out(show)
            clock("matrix")
        options = Options(self.rank, self.rtol, self.max_rank, self.points, self.solver, self.svd)
        search = HeadSearch(problem, normal, self.svd, side, generator, show, stages)
        head, width = saved_head(stages, space), None
        if self.rank is None:
            head, width = search.until_tight(options.tolerance(problem, generator), head)
        elif head is None:
            head = search.of_rank(self.rank)
        clock("head")
        z = problem.operators.draw_weights(self.tail, generator).double()
        sides = right_hand_sides(problem, normal, z, generator)
        solution = self.solver.solve(normal.system(head), sides, progress=show, bookmark=stages.bookmark("solve"))
        clock("solve")
        warn_if_rounded(problem, solution)
        return LowRankPosterior(
            problem, options, head, head.explained(), z, sides, solution, head.bracket.slack, side, width, clock.seconds
        )

    def _check(self, problem: Problem) -> None:
        if self.rank is not None:
            check_rank(self.rank, *problem.operators.shape)
        if self.side == "kernel" and problem.data.shard is not None:
            raise ValueError("side must be None, 'weights' or 'matrix' with a group, whose points have no kernel in one place")
