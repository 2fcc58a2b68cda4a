"""The matrix-free posterior."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp._system.check_options import check_count
from ntkgp._system.memory import out_of_memory, rows_per_chunk
from ntkgp._system.types import MeanFunction
from ntkgp.distributed.split_space import Split, replicated
from ntkgp.linalg.cgls import CGLS, Solution
from ntkgp.linalg.head import Head
from ntkgp.linalg.head_update import agrees, refined, with_more_rows
from ntkgp.posterior.interface import Posterior
from ntkgp.posterior.lowrank.clock import Clock
from ntkgp.posterior.lowrank.head_search import HeadSearch
from ntkgp.posterior.lowrank.options import Options
from ntkgp.posterior.lowrank.side import Normal
from ntkgp.posterior.lowrank.solve import right_hand_sides
from ntkgp.posterior.prediction import Prediction
from ntkgp.posterior.queries import mean_chunks, predict_chunks
from ntkgp.posterior.samples import FunctionSample
from ntkgp.problem.extend import extend_problem
from ntkgp.problem.problem import Problem
from ntkgp.problem.source import UserData
from ntkgp.problem.stored import problem_state, restore_head, restore_problem
from ntkgp.storage.stages import Stages
from ntkgp.storage.state import State

MIN_DRAWS_PER_SOLVE = 64  # functions solved for together; more if their buffers fit in 1 GiB


@dataclass(frozen=True)
class LowRankPosterior(Posterior):
    """The linearised posterior over the weights: mean, head and tail are columns that J(x) multiplies."""

    problem: Problem
    options: Options
    head: Head
    explained: Float[Tensor, "P K"]
    z: Float[Tensor, "P T"]  # weights drawn from the prior for the tail
    sides: Float[Tensor, "P 1+T"]  # right-hand sides: one for the mean, then one per draw of the tail
    solution: Solution
    found_slack: float  # slack of the head's bracket after the last search over all data
    side: str  # "weights", "kernel" or "matrix": how the fit computed its products
    bracket_width: float | None  # relative width reached, if rtol was given
    seconds: dict[str, float]  # per stage of the fit
    refined: int = 0  # how often updates found the bracket too wide and searched for a better head

    kind = "low rank"

    @property
    def solver(self) -> CGLS:
        """The solver for the mean, the tail and function samples."""
        return self.options.solver

    @property
    def mean_weights(self) -> Float[Tensor, "P 1"]:
        """The displacement of the weights that gives the posterior mean."""
        return self.solution.x[:, :1]

    @cached_property
    def tail(self) -> Float[Tensor, "P T"]:
        """The predictors of the draws minus their predictors from the head alone.

        This is a martingale difference, so its covariance is exactly the excess of the upper bound, for any head, converged or
        not.
        """
        return self.solution.x[:, 1:] - self.head.partial_mean(self.sides[:, 1:])

    def mean(self, x: Tensor) -> Tensor:
        """The mean by a product with J(x). Cost: 2·M·C·P operations; memory the factors of one chunk of queries."""
        return mean_chunks(self.problem, x, self._mean)

    def _mean(self, x: Tensor) -> Float[Tensor, "MC"]:
        operators = self.problem.operators
        return self.problem.answers.mean_at(x).double() + operators.features(operators.at(x), self.mean_weights)[:, 0]

    @out_of_memory("pass fewer points of x at a time")
    def predict(self, x: Tensor, *, noise_var: float | Tensor | None = None) -> Prediction:
        """Mean, variance and bracket by products with J(x).

        Cost: 2·M·C·P·(2K + T + 1) operations; memory one working buffer besides the factors of one chunk of queries.
        """
        return predict_chunks(self.problem, x, self._predict, noise_var)

    def _predict(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        operators = self.problem.operators
        rows = operators.at(x)
        prior = rows.diag().double()
        both = operators.features(rows, torch.cat([self.mean_weights, self.tail], dim=1))
        lower = self.head.bracket.lower(operators.features(rows, self.head.v), prior)
        upper = prior - operators.features(rows, self.explained).square().sum(dim=1)
        upper = torch.maximum(upper, lower)  # equal at full rank, where rounding must not swap them
        variance = upper - both[:, 1:].square().sum(dim=1) / max(self.tail.shape[1], 1)
        mean = self.problem.answers.mean_at(x).double() + both[:, 0]
        return mean, torch.clamp(variance, lower, upper), lower, upper

    @out_of_memory("pass fewer points of x at a time")
    def covariance(self, x: Tensor) -> Float[Tensor, "MC MC"]:
        """The joint upper bound minus the tail's estimate, negative part removed. Memory: 3·(M·C)² + M·C·(K + T) numbers."""
        operators, answers = self.problem.operators, self.problem.answers
        rows = operators.at(answers.checked(x))
        known = torch.cat([self.explained, self.tail / max(self.tail.shape[1], 1) ** 0.5], dim=1)
        known = operators.features(rows, known)
        return answers.positive(rows.gram().double() - known @ known.T)

    @out_of_memory("draw fewer functions at a time (count)")
    def sample(self, count: int, *, generator: torch.Generator | None = None) -> FunctionSample:
        """Draws by one more solve: exact to the solver's tolerance, with the exact posterior covariance.

        They do not depend on the rank. Their variance lies in the bracket of ``predict``: with a tail, ``predict`` estimates
        it without bias; without a tail, ``predict`` gives an upper bound. Cost: that of the mean with `count` right-hand
        sides; memory (P + N·C)·count numbers, and 6·P per function solved together (64, or as many as fit in 1 GiB).
        """
        check_count(count, "count", 1)
        problem, data, operators = self.problem, self.problem.data, self.problem.operators
        generator = generator if data.shard is None else data.shard.group.shared(generator)
        r = data.whitened_residual.double().unsqueeze(1)
        weights = operators.draw_weights(count, generator).double()
        noise = data.draw_noise(count, generator)
        columns = max(MIN_DRAWS_PER_SOLVE, rows_per_chunk(6 * 8 * operators.parameters, budget=2**30))
        system = Normal(problem).system(self.head)
        for z, e in zip(weights.split(columns, dim=1), noise.split(columns, dim=1), strict=True):
            c = operators.whitened.rmatmat(r - e.double()) - operators.normal(z)
            z += self.solver.solve(system, c).x
        return FunctionSample(problem, weights)

    def update(
        self,
        x: UserData,
        y: Tensor | None = None,
        *,
        noise_var: float | Tensor | None = None,
        generator: torch.Generator | None = None,
        progress: bool = False,
    ) -> "LowRankPosterior":
        """The posterior with more data: head, mean and the tail's draws start from their current values.

        The bracket is certified for all data. The rank stays the same, with two exceptions: a head that spans the whole row
        space still does so afterwards, and the rank grows if `rtol` requires it. If the slack of the bracket has doubled, a
        block iteration improves the head (`refined` counts these). If the fit had batches, the new data becomes one more batch.

        Cost for m points: a product 4·N·C·P with m·C + 1 columns, about 16·P·K² operations, and a few steps of the solver.
        Memory: that of the fit; twice that if you store both posteriors.
        """
        if self.problem.data.shard is not None:
            raise ValueError(
                "update needs all data in one process, but this posterior was fitted by a group; call fit again with all data"
            )
        clock, options = Clock(self.problem.network.device), self.options
        whole, new = extend_problem(self.problem, x, y, noise_var)
        normal, shape = Normal(whole), whole.operators.shape
        clock("factors")
        full = self.head.rank == min(self.problem.operators.shape)
        rank, trace = min(shape) if full else self.head.rank, whole.operators.trace
        head = with_more_rows(self.head, new.operators.whitened, normal, trace, rank)
        found, width, times = self.found_slack, None, self.refined
        if head.bracket.slack + 1 > 2 * (found + 1) or not agrees(head, normal):
            head = refined(head, normal, trace)
            found, times = head.bracket.slack, times + 1
        if options.rtol is not None:
            stages = Stages(None, {}, generator, whole.network.device)
            search = HeadSearch(whole, normal, options.svd, "weights", generator, progress, stages)
            head, width = search.until_tight(options.tolerance(whole, generator), head)
            found = head.bracket.slack
        clock("head")
        sides = self.sides + right_hand_sides(Normal(new), self.z, generator)
        solution = options.solver.solve(normal.system(head), sides, start=self.solution.x, progress=progress)
        clock("solve")
        return LowRankPosterior(
            whole, options, head, head.explained(), self.z, sides, solution, found, self.side, width, clock.seconds, times
        )

    def whole(self) -> "LowRankPosterior":
        """Return the same posterior with every vector whole on every rank; all ranks must call it. Memory: 6·P·K numbers."""
        space = self.problem.operators.space
        if not isinstance(space, Split):
            return self
        copies = replicated(space.group)
        problem = replace(self.problem, operators=replace(self.problem.operators, space=copies))
        head = replace(self.head, v=space.whole(self.head.v), image=space.whole(self.head.image), space=copies)
        return replace(
            self, problem=problem, head=head, explained=space.whole(self.explained), z=space.whole(self.z),
            sides=space.whole(self.sides), solution=replace(self.solution, x=space.whole(self.solution.x)),
        )  # fmt: skip

    def state(self) -> State:
        """Return all data of the posterior except the network; the mean is the first column of the solution."""
        options = self.options
        if self.problem.operators.space.spread:
            raise ValueError("this posterior is split over the ranks; call posterior.whole() on all ranks and save its result")
        if type(options.solver) is not CGLS:
            raise ValueError(f"only CGLS can be saved as solver, got {type(options.solver).__name__}: files store no code")
        return problem_state(self.problem) | State.of(
            head=self.head, explained=self.explained, sides=self.sides, z=self.z, solution=self.solution,
            found_slack=self.found_slack, side=self.side, bracket_width=self.bracket_width, seconds=self.seconds,
            refined=self.refined, rank=options.rank, rtol=options.rtol, max_rank=options.max_rank,
            points_of_rtol=options.points, solver=options.solver,
        )  # fmt: skip

    @classmethod
    def from_state(cls, state: State, module: nn.Module, prior_mean: MeanFunction | None) -> "LowRankPosterior":
        """Rebuild the posterior; pass `prior_mean` again if it was a function. The SVD method is not saved."""
        problem, double = restore_problem(state, module, prior_mean), torch.float64
        z = state.tensor("z", "P T", double)
        nowhere = state.facts.get("points_of_rtol", "in the tensors") is None
        options = Options(
            rank=state.fact("rank", int, type(None)),
            rtol=state.fact("rtol", float, type(None)),
            max_rank=state.fact("max_rank", int),
            points=None if nowhere else state.tensor("points_of_rtol", "R ..."),
            solver=state.build(CGLS, "solver"),
        )
        return cls(
            problem=problem,
            options=options,
            head=restore_head(state, "head"),
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
