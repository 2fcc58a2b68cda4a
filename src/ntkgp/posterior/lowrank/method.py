"""The matrix-free method: a head of singular directions, and posterior draws by conjugate gradients."""

import math
from dataclasses import dataclass, field

import torch

from ntkgp._system.check_options import check_count, check_positive, check_rank
from ntkgp._system.memory import out_of_memory
from ntkgp.linalg.cgls import CGLS
from ntkgp.linalg.chi_squared import check_confidence
from ntkgp.linalg.svd.partial_svd import SVDMethod
from ntkgp.linalg.svd.subspace import RandomizedSVD
from ntkgp.posterior.choice.cost import HEAD_PRODUCTS, SOLVER_STEPS
from ntkgp.posterior.lowrank.clock import Clock
from ntkgp.posterior.lowrank.head_search import HeadSearch
from ntkgp.posterior.lowrank.options import CONFIDENCE, Options
from ntkgp.posterior.lowrank.posterior import LowRankPosterior
from ntkgp.posterior.lowrank.side import Normal, choose_side
from ntkgp.posterior.lowrank.solve import Solver
from ntkgp.posterior.method import Method, Run
from ntkgp.problem.problem import Problem
from ntkgp.storage.stages import Stages

DEFAULT_DRAWS = 64  # the std has a relative error of 9 %
LEAST_RANK, MOST_RANK = 64, 1024  # of a head whose rank is chosen
HEAD_VECTORS, DRAW_VECTORS = 4, 3  # vectors over the weights in memory per direction and per draw
MORE_MEMORY = 2  # how much more of it a head of all directions may take than a smaller head with draws


@dataclass(frozen=True)
class LowRank(Method):
    """Matrix-free: a head of K singular directions in closed form, and T posterior draws for the rest.

    Stores nothing of size N×N, N×P or P×P. The mean and the draws are ridge regressions over the weights, solved together. The
    std has a relative error of √(1/2T) (9 % for 64 draws) whatever N, P and K: at every point ``T·v̂/v`` of the drawn part
    has the χ² distribution with T degrees, which gives an exact interval. The head gives another bracket, certified, and makes
    the solver converge. For any digit at a few points, see ``posterior.sharpen``.

    Cost: about 24·N·C·P·K operations for the head, 4·N·C·P·(1 + T) per step of the solver, and some tens of steps; or, if
    cheaper, N·C·P² once to form the P×P normal matrix in one pass. Memory: the layer factors if they fit, P·(4·K + 3·T)
    numbers (and P² for the matrix), 8·P per column that is solved at a time (65 to 257), and one working buffer.

    Args:
        rank: K; None for a head that costs about as much as the draws.
        rtol: the relative error of the std: sets T = 1/(2·rtol²). Where all directions cost less than so many draws, the
            head takes all of them, unless that takes more than twice the memory, and the std is exact.
        draws: T; 0 for the certified upper bound alone.
        confidence: the probability with which each bracket holds.
        svd: method that finds the head. For a float32 network it multiplies in float32 (TF32 on GPUs), which affects only
            the choice of the subspace.
        solver: solver for the mean and the draws.
        dtype: the dtype in which the network is evaluated and the layer factors are stored; float32 only for modules or
            devices that cannot do float64, since the bracket allows for its rounding. Products that decide are always float64.
        side: how to compute products: ``"weights"`` with the layer factors, ``"kernel"`` with the matrix J̃J̃ᵀ in the search for
            the head (not with a group), ``"matrix"`` with the matrix G = J̃ᵀJ̃; None for the cheapest.

    Example:
        >>> import torch, ntkgp
        >>> g = torch.Generator().manual_seed(0)
        >>> net, x = ntkgp.mlp(1, width=64, generator=g), torch.linspace(-1, 1, 50).unsqueeze(1)
        >>> posterior = ntkgp.fit(net, x, torch.sin(3 * x[:, 0]), noise_var=0.05, method=ntkgp.LowRank(rank=8), generator=g)
        >>> p = posterior.predict(torch.tensor([[0.0], [5.0]]))
        >>> bool((p.lower <= p.variance).all() and (p.variance <= p.upper).all()), p.confidence
        (True, 0.999)
    """

    rank: int | None = None
    rtol: float | None = None
    draws: int | None = None
    confidence: float = CONFIDENCE
    svd: SVDMethod = field(default_factory=lambda: RandomizedSVD(power=1, tol=None))
    solver: CGLS = field(default_factory=CGLS)
    dtype: torch.dtype = torch.float64
    side: str | None = None

    def __post_init__(self) -> None:
        if self.rtol is not None and self.draws is not None:
            raise ValueError(f"give LowRank either draws or an rtol, got draws={self.draws}, rtol={self.rtol}")
        if self.rank is not None:
            check_count(self.rank, "rank", 1)
        check_positive("LowRank", rtol=self.rtol)
        if self.draws is not None:
            check_count(self.draws, "draws", 0)
        check_confidence(self.confidence)
        if self.side not in (None, "weights", "kernel", "matrix"):
            raise ValueError(f"side must be None, 'weights', 'kernel' or 'matrix', got {self.side!r}")

    @property
    def takes_shards(self) -> bool:
        """Each rank or batch adds to products."""
        return True

    def settled(self, rows: int, parameters: int) -> tuple[int, int]:
        """K and T for this number of observations and parameters."""
        draws = DEFAULT_DRAWS if self.draws is None else self.draws
        if self.rtol is not None:
            draws = math.ceil(0.5 / self.rtol**2)
        work, every = SOLVER_STEPS * (1 + draws), min(rows, parameters)  # in products with G
        if self.rank is not None:
            return self.rank, 0 if self.rank == every else draws  # with all directions, nothing is left to draw
        rank = min(every, max(LEAST_RANK, min(MOST_RANK, work // HEAD_PRODUCTS)))
        numbers = HEAD_VECTORS * rank + DRAW_VECTORS * draws
        if HEAD_PRODUCTS * every <= HEAD_PRODUCTS * rank + work and HEAD_VECTORS * every <= MORE_MEMORY * numbers:
            return every, 0
        return rank, draws

    @out_of_memory("lower rank and draws of LowRank")
    def fit(self, problem: Problem, run: Run | None = None) -> LowRankPosterior:
        """Find the head, then solve for the mean and the draws."""
        run, clock = run or Run(), Clock(problem.network.device)
        rank, draws = self.settled(*problem.operators.shape)
        self._check(problem, rank)
        problem = problem.split_if_needed(max(rank, draws))
        _ = problem.operators.prior_variance  # computes the factors of J(x); raises if a value is not finite
        clock("factors")
        identity = {} if run.checkpoint is None else problem.identity | {"method": repr(self)}
        stages = Stages(run.checkpoint, identity, run.generator, problem.network.device, run.group, problem.operators.space)
        generator, show = stages.generator, run.shows_progress
        # The cheapest side depends on free memory, so a resumed fit must use the side chosen at its start.
        side = stages.once("side", self.side or choose_side(problem, rank, 1 + draws))
        normal = Normal(problem)
        if side == "matrix":
            normal = normal.written_out(show)
            clock("matrix")
        head = HeadSearch(problem, normal, self.svd, side, generator, show, stages).of_rank(rank)
        clock("head")
        found = Solver(self.solver, normal, head, generator, show, stages.bookmark).mean_and_draws(draws)
        clock("solve")
        options = Options(self.solver, self.confidence, self.svd)
        return LowRankPosterior(
            problem, options, head, found.sides, found.solution, head.bracket.slack, side, clock.seconds, why=run.why
        )

    def _check(self, problem: Problem, rank: int) -> None:
        check_rank(rank, *problem.operators.shape)
        if self.side == "kernel" and problem.data.shard is not None:
            raise ValueError(
                "side must be None, 'weights' or 'matrix' with a group, got 'kernel': no rank has the whole kernel"
            )
