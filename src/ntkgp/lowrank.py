"""The matrix-free posterior of the linearised network: a head from a partial SVD, the rest by conjugate gradients."""

import time
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp._checks import check_count, check_positive, check_rank
from ntkgp._progress import progress_bar
from ntkgp._types import MeanFunction
from ntkgp.archive import State
from ntkgp.checkpoint import Checkpoint, Progress
from ntkgp.heads import START, choose_side, grow, grow_until_tight, kept_head
from ntkgp.linalg.cgls import CGLS, Solution
from ntkgp.linalg.head import Head
from ntkgp.linalg.head_update import agrees, refined, with_more_rows
from ntkgp.linalg.svd import RandomizedSVD, SVDMethod
from ntkgp.more_data import Data, with_more
from ntkgp.posterior import FunctionSample, Posterior, Prediction
from ntkgp.problem import Problem
from ntkgp.sharded import Split, replicated
from ntkgp.stored_problem import problem_state, stored_head, stored_problem
from ntkgp.tangent.memory import by_halves, out_of_memory, rows_per_chunk
from ntkgp.weight_space import must_split, right_hand_sides, rough, warn_if_rounded

TOGETHER = 64  # functions drawn together, or as many more as need less than a gigabyte


@dataclass(frozen=True)
class LowRank:
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

    @out_of_memory("lower rank (or max_rank) and tail of LowRank")
    def fit(
        self,
        problem: Problem,
        generator: torch.Generator | None = None,
        progress: bool = False,
        checkpoint: Checkpoint | None = None,
    ) -> "LowRankPosterior":
        """Find the head, solve for the mean and the tail."""
        clock = _Clock(problem.network.device)
        self._check(problem)
        if must_split(problem, self.rank or self.max_rank):
            problem = problem.split()
        _ = problem.prior_variance  # the first look at J(x) computes its factors: finite, or it says where not
        clock("factors")
        group = None if problem.shard is None else problem.shard.group
        identity = {} if checkpoint is None else problem.identity | {"method": repr(self)}
        kept = Progress(checkpoint, identity, generator, problem.network.device, group, problem.space)
        generator, show = kept.generator, progress and (group is None or group.first)
        # What is cheapest depends on free memory, which may have changed since a fit that goes on was begun.
        side = kept.once("side", self.side or choose_side(problem, self.rank or START, 1 + self.tail))
        work = problem
        if side == "matrix" and problem.space.spread:
            raise ValueError("side must be None or 'weights' where vectors are split over ranks; or raise Group(memory=...)")
        if side == "matrix":  # the posterior keeps the problem without it, as files do
            work = problem.written_out(show)
            clock("matrix")
        if self.rank is not None:
            with progress_bar(show, desc="finding the head", unit="pass", leave=False) as bar:
                head, width = kept_head(kept, problem.space), None
                head = grow(work, None, self.rank, self.svd, side, generator, bar, kept) if head is None else head
        else:
            head, width = self._until_tight(work, None, side, generator, show, kept)
        clock("head")
        z = problem.weights_normal(self.tail, generator).double()
        sides = right_hand_sides(work, z, generator)
        solution = self.solver.solve(
            work.normal, sides, head.precondition, rough=rough(work), progress=show, space=problem.space,
            bookmark=kept.bookmark("solve"),
        )  # fmt: skip
        clock("solve")
        warn_if_rounded(problem, solution)
        return LowRankPosterior(
            problem, self, head, head.explained(), z, sides, solution, head.slack, side, width, clock.seconds
        )

    def _check(self, problem: Problem) -> None:
        if self.rank is not None:
            check_rank(self.rank, problem.points * problem.outputs, problem.tangent.space.size)
        if self.side == "kernel" and problem.shard is not None:
            raise ValueError("side must be None, 'weights' or 'matrix' with a group, whose points have no kernel in one place")

    def _until_tight(
        self,
        problem: Problem,
        head: Head | None,
        side: str,
        generator: torch.Generator | None,
        progress: bool,
        kept: Progress,
    ) -> tuple[Head, float]:
        assert self.rtol is not None
        points = problem.sample_points(512, generator) if self.points is None else self.points
        head = kept_head(kept, problem.space) if head is None else head
        return grow_until_tight(problem, head, self.rtol, points, self.max_rank, self.svd, side, generator, progress, kept)


class _Clock:
    """Seconds between calls, by name, once the device has caught up."""

    def __init__(self, device: torch.device):
        self.device, self.seconds, self.last = device, dict[str, float](), time.perf_counter()

    def __call__(self, stage: str) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        self.seconds[stage], self.last = now - self.last, now


@dataclass(frozen=True)
class LowRankPosterior(Posterior):
    """The linearised posterior as weights: the mean, the head and the tail are columns to multiply J(x) with."""

    problem: Problem
    method: LowRank
    head: Head
    explained: Float[Tensor, "P K"]
    z: Float[Tensor, "P T"]  # the weights drawn for the tail
    sides: Float[Tensor, "P 1+T"]  # right-hand sides, of the mean and of the tail's draws
    solution: Solution
    found_slack: float  # of the head, when it was last looked for in all data
    side: str  # "weights", "kernel" or "matrix": how the products were made, whichever was cheapest
    bracket_width: float | None  # reached, where rtol asked for it
    seconds: dict[str, float]  # spent on each stage
    refined: int = 0  # how often updates found the bracket loose, and looked for the head again from where it was

    kind = "low rank"

    @property
    def solver(self) -> CGLS:
        """How the mean, the tail and function samples are found."""
        return self.method.solver

    @property
    def mean_weights(self) -> Float[Tensor, "P 1"]:
        """The weights of the posterior mean."""
        return self.solution.x[:, :1]

    @cached_property
    def tail(self) -> Float[Tensor, "P T"]:
        """The draws' predictors less what seeing only the head would have predicted.

        A martingale difference, so its covariance is exactly what the upper bound is too large by, for any head however far
        from converged.
        """
        return self.solution.x[:, 1:] - self.head.partial_mean(self.sides[:, 1:])

    def mean(self, x: Tensor) -> Tensor:
        """The mean by a product with J(x). Cost: 2·M·C·P operations; memory the factors of a block of queries."""
        problem, x = self.problem, self.problem.checked(x)
        parts = [problem.mean_at(part).double() + problem.features(problem.tangent.at(part), self.mean_weights)[:, 0]
                 for part in x.split(len(x) if problem.space.spread else 16384)]  # fmt: skip
        return problem.shaped(torch.cat(parts))

    @out_of_memory("ask about fewer points of x at a time")
    def predict(self, x: Tensor, *, noise_var: float | Tensor | None = None) -> Prediction:
        """Mean, variance and bracket by products with J(x).

        Cost: 2·M·C·P·(2K + T + 1) operations; memory one working set beside the factors of a block of queries.
        """
        problem, x = self.problem, self.problem.checked(x)
        # Vectors that are split are gathered once for all points, so that every rank does so equally often.
        if problem.space.spread:
            parts = [self._predict(x)]
        else:
            parts = [found for part in x.split(16384)
                     for found in by_halves(lambda some, part=part: self._predict(part[some]), len(part))]  # fmt: skip
        mean, variance, lower, upper = (problem.shaped(torch.cat(column)) for column in zip(*parts, strict=True))
        noise = problem.noise_at(x, noise_var)
        return Prediction(mean, variance, lower, upper, None if noise is None else problem.shaped(noise.flatten()))

    def _predict(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        jacobian = self.problem.tangent.at(x)
        prior = jacobian.diag().double()
        both = self.problem.features(jacobian, torch.cat([self.mean_weights, self.tail], dim=1))
        lower = self.head.lower(self.problem.features(jacobian, self.head.v), prior)
        upper = prior - self.problem.features(jacobian, self.explained).square().sum(dim=1)
        # The two bounds meet at full rank: rounding must not turn them around.
        upper = torch.maximum(upper, lower)
        variance = upper - both[:, 1:].square().sum(dim=1) / max(self.tail.shape[1], 1)
        mean = self.problem.mean_at(x).double() + both[:, 0]
        return mean, torch.clamp(variance, lower, upper), lower, upper

    @out_of_memory("ask about fewer points of x at a time")
    def covariance(self, x: Tensor) -> Float[Tensor, "MC MC"]:
        """The joint upper bound less the tail's estimate, its negative part removed. Memory: 3·(M·C)² + M·C·(K + T) numbers."""
        jacobian = self.problem.tangent.at(self.problem.checked(x))
        known = torch.cat([self.explained, self.tail / max(self.tail.shape[1], 1) ** 0.5], dim=1)
        known = self.problem.features(jacobian, known)
        return self.problem.positive(jacobian.kernel().double() - known @ known.T)

    @out_of_memory("draw fewer functions at a time, count")
    def sample(self, count: int, *, generator: torch.Generator | None = None) -> FunctionSample:
        """Draws by one more solve: exact to the solver's tolerance, with the covariance of the Gaussian process itself.

        So they do not depend on the rank. Their variance lies in the bracket of ``predict``: with a tail it is what the
        variance there estimates without bias, without one it is not above it. Cost: that of the mean with `count` right-hand
        sides; memory (P + N·C)·count numbers, and 6·P a function for those solved together (64, or 1 GiB).
        """
        check_count(count, "count", 1)
        problem, solver = self.problem, self.method.solver
        generator = generator if problem.shard is None else problem.shard.group.shared(generator)
        r = problem.whitened_residual.double().unsqueeze(1)
        weights = problem.weights_normal(count, generator).double()
        noise = problem.rows_normal(count, generator)
        columns = max(TOGETHER, rows_per_chunk(6 * 8 * problem.tangent.space.size, budget=2**30))
        for z, e in zip(weights.split(columns, dim=1), noise.split(columns, dim=1), strict=True):
            c = problem.whitened.rmatmat(r - e.double()) - problem.normal(z)
            z += solver.solve(problem.normal, c, self.head.precondition, rough=rough(problem), space=problem.space).x
        return FunctionSample(problem, weights)

    def update(
        self,
        x: Data,
        y: Tensor | None = None,
        *,
        noise_var: float | Tensor | None = None,
        generator: torch.Generator | None = None,
        progress: bool = False,
    ) -> "LowRankPosterior":
        """The posterior with more data: the head goes on from where it was, and so do the mean and the tail's draws.

        The bracket is certified for all data. The rank stays, except that a head that was the whole row space remains so, and
        that `rtol` is held. When what is left out has become twice of what it was, the head is looked for again by a block
        iteration from where it is (`refined` counts). New data is kept beside batches of the fit as one batch more.

        Cost for m points: a product 4·N·C·P with m·C + 1 columns, some 16·P·K² operations, and a few steps of the solver.
        Memory: that of the fit, while both posteriors are kept twice.
        """
        if self.problem.shard is not None:
            raise ValueError(
                "update needs all data in one process, and this posterior was fitted by a group; fit again with all"
            )
        clock = _Clock(self.problem.network.device)
        whole, new = with_more(self.problem, x, y, noise_var)
        clock("factors")
        rows, parameters = self.problem.shape
        everything = self.head.rank == min(rows, parameters)
        rank = min(whole.shape) if everything else self.head.rank
        head = with_more_rows(self.head, new.whitened, whole.normal, whole.trace, rank)
        found, width, times, method = self.found_slack, None, self.refined, self.method
        if head.slack + 1 > 2 * (found + 1) or not agrees(head, whole.normal):
            head = refined(head, whole.normal, whole.trace)
            found, times = head.slack, times + 1
        if method.rtol is not None:
            nowhere = Progress(None, {}, generator, whole.network.device)
            head, width = method._until_tight(whole, head, "weights", generator, progress, nowhere)
            found = head.slack
        clock("head")
        sides = self.sides + right_hand_sides(new, self.z, generator)
        solution = method.solver.solve(
            whole.normal, sides, head.precondition, start=self.solution.x, rough=rough(whole), progress=progress
        )
        clock("solve")
        return LowRankPosterior(
            whole, method, head, head.explained(), self.z, sides, solution, found, self.side, width, clock.seconds, times
        )

    def whole(self) -> "LowRankPosterior":
        """The same with every vector on every rank, where they were split; all ranks must take part. Memory: 6·P·K numbers."""
        space = self.problem.space
        if not isinstance(space, Split):
            return self
        problem = replace(self.problem, space=replicated(space.group))
        head = replace(self.head, v=space.whole(self.head.v), image=space.whole(self.head.image), space=problem.space)
        return replace(
            self, problem=problem, head=head, explained=space.whole(self.explained), z=space.whole(self.z),
            sides=space.whole(self.sides), solution=replace(self.solution, x=space.whole(self.solution.x)),
        )  # fmt: skip

    def state(self) -> State:
        """All that the posterior is made of, less the network; the mean is the first column of the solution."""
        method = self.method
        if self.problem.space.spread:
            raise ValueError("this posterior is split over the ranks; save posterior.whole() instead, made on all ranks")
        if type(method.solver) is not CGLS:
            raise ValueError(f"only CGLS can be saved as solver, got {type(method.solver).__name__}, which is code")
        return problem_state(self.problem) | State.of(
            head=self.head, explained=self.explained, sides=self.sides, z=self.z, solution=self.solution,
            found_slack=self.found_slack, side=self.side, bracket_width=self.bracket_width, seconds=self.seconds,
            refined=self.refined, rank=method.rank, rtol=method.rtol, max_rank=method.max_rank, points_of_rtol=method.points,
            solver=method.solver,
        )  # fmt: skip

    @classmethod
    def from_state(cls, state: State, module: nn.Module, prior_mean: MeanFunction | None) -> "LowRankPosterior":
        """The posterior again; prior_mean is the function, where it was one. How a head would be found is not in the file."""
        problem, double = stored_problem(state, module, prior_mean), torch.float64
        z = state.tensor("z", "P T", double)
        nowhere = state.facts.get("points_of_rtol", "in the tensors") is None
        method = LowRank(
            rank=state.fact("rank", int, type(None)),
            rtol=state.fact("rtol", float, type(None)),
            tail=z.shape[1],
            solver=state.build(CGLS, "solver"),
            points=None if nowhere else state.tensor("points_of_rtol", "R ..."),
            max_rank=state.fact("max_rank", int),
        )
        return cls(
            problem=problem,
            method=method,
            head=stored_head(state, "head"),
            explained=state.tensor("explained", "P L", double),
            sides=state.tensor("sides", "P 1+T", double),
            z=z,
            solution=state.build(Solution, "solution", double, x="P 1+T"),
            found_slack=state.fact("found_slack", float),
            side=state.fact("side", str),
            bracket_width=state.fact("bracket_width", float, type(None)),
            seconds=state.fact("seconds", dict),
            refined=state.fact("refined", int),
        )
