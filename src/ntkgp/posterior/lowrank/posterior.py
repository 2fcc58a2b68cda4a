"""The matrix-free posterior."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp._system.check_options import check_count
from ntkgp._system.locks import cached_property
from ntkgp._system.memory import out_of_memory
from ntkgp._system.types import MeanFunction
from ntkgp.distributed.split_space import Split, replicated
from ntkgp.linalg.bracket import ROUNDINGS
from ntkgp.linalg.cgls import CGLS, Solution
from ntkgp.linalg.chi_squared import check_confidence, scaled, variance_interval
from ntkgp.linalg.head import Head
from ntkgp.linalg.head_update import agrees, refined, with_more_rows
from ntkgp.posterior.interface import Posterior, why_of
from ntkgp.posterior.lowrank.clock import Clock
from ntkgp.posterior.lowrank.older import restore_draws
from ntkgp.posterior.lowrank.options import CONFIDENCE, Options
from ntkgp.posterior.lowrank.side import Normal
from ntkgp.posterior.lowrank.solve import MEAN, Solver, draw_accuracy, solved
from ntkgp.posterior.prediction import Prediction
from ntkgp.posterior.queries import mean_chunks, predict_chunks
from ntkgp.posterior.samples import LinearSample
from ntkgp.posterior.sharpening import Sharpening, check_sharpening
from ntkgp.problem.extend import check_updatable, extend_problem
from ntkgp.problem.problem import Problem
from ntkgp.problem.source import UserData
from ntkgp.problem.stored import problem_state, restore_head, restore_problem
from ntkgp.storage.state import State


@dataclass(frozen=True, repr=False)
class LowRankPosterior(Posterior):
    """The linearised posterior over the weights: mean, head and draws are columns that J(x) multiplies."""

    problem: Problem
    options: Options
    head: Head
    sides: Float[Tensor, "P S"]  # right-hand sides: one for the mean, then one per draw
    solution: Solution
    found_slack: float  # slack of the head's bracket after the last search over all data
    side: str  # "weights", "kernel" or "matrix": how the fit computed its products
    seconds: dict[str, float]  # per stage of the fit
    refined: int = 0  # how often updates found the bracket too wide and searched for a better head
    why: str = ""

    kind = "low rank"

    @property
    def method_name(self) -> str:
        """The method and its size, in words."""
        return f"low rank ({self.head.rank:,} directions, {self.draws:,} draws)"

    @property
    def std_error(self) -> float | None:
        """√(1/2T): the relative error of the std that T draws give, in root mean square; None for the upper bound alone.

        0 if the head has all directions.
        """
        if self.complete:
            return 0.0
        return (2 * self.draws) ** -0.5 if self.draws else None

    @property
    def complete(self) -> bool:
        """Whether the head has all directions, so that nothing is left to draw."""
        return self.head.rank == min(self.problem.operators.shape)

    @property
    def _estimates(self) -> bool:
        return self.draws > 0 and not self.complete

    @property
    def draws(self) -> int:
        """T."""
        return self.sides.shape[1] - 1

    @property
    def solver(self) -> CGLS:
        """The solver for the mean, the draws and function samples."""
        return self.options.solver

    @property
    def mean_weights(self) -> Float[Tensor, "P 1"]:
        """The displacement of the weights that gives the posterior mean."""
        return self.solution.x[:, :1]

    @cached_property
    def rest(self) -> Float[Tensor, "P T"]:
        """The draws outside the head: δ − V(VᵀHV)⁻¹VᵀHδ, with covariance H⁻¹ − V(VᵀHV)⁻¹Vᵀ for any V, converged or not."""
        return self.head.outside(self.solution.x[:, 1:])

    @cached_property
    def _interval(self) -> tuple[float, float]:
        """Factors of the drawn variance that enclose the exact one; wider by the solver's error."""
        off = float(self.solution.errors[1:].max()) if self.draws else 0.0
        return variance_interval(self.draws, self.options.confidence, off)

    def mean(self, x: Tensor) -> Tensor:
        """The mean by a product with J(x). Cost: 2·M·C·P operations; memory the factors of one chunk of queries."""
        return mean_chunks(self.problem, x, self._mean)

    def _mean(self, x: Tensor) -> Float[Tensor, "MC"]:
        operators = self.problem.operators
        return self.problem.answers.mean_at(x).double() + operators.features(operators.at(x), self.mean_weights)[:, 0]

    @out_of_memory("pass fewer points of x at a time")
    def predict(self, x: Tensor, *, noise_var: float | Tensor | None = None) -> Prediction:
        """Mean, variance and bracket by products with J(x).

        The bracket is the certified one of the head, intersected with the χ² interval of the draws, which holds with the
        probability `confidence` at each point. Without draws the variance is the certified upper bound.

        Cost: 2·M·C·P·(2K + T + 1) operations; memory one working buffer besides the factors of one chunk of queries.
        """
        confidence = self.options.confidence if self._estimates else 1.0
        return predict_chunks(self.problem, x, self._predict, noise_var, confidence=confidence)

    def _predict(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        operators, head = self.problem.operators, self.head
        rows = operators.at(x)
        prior = rows.diag().double()
        columns = [self.mean_weights, self.rest] if self._estimates else [self.mean_weights]
        both = operators.features(rows, torch.cat(columns, dim=1))
        features = operators.features(rows, head.v)
        lower = head.bracket.lower(features, prior)
        upper = torch.maximum(head.upper(operators.features(rows, head.image), prior), lower)
        mean = self.problem.answers.mean_at(x).double() + both[:, 0]
        if self.complete:  # outside of the head G is zero, so H is the identity there
            outside = (prior - features.square().sum(dim=1)).clamp_min(0)
            return mean, torch.clamp(head.inside(features) + outside, lower, upper), lower, upper
        if not self._estimates:
            return mean, upper, lower, upper
        known, drawn = head.inside(features), both[:, 1:].square().mean(dim=1)
        variance = torch.clamp(known + drawn, lower, upper)
        (low, high), rounding = scaled(self._interval, drawn), ROUNDINGS * head.unit * prior
        lower = torch.maximum(lower, torch.minimum(known - rounding + low, upper))
        upper = torch.maximum(torch.minimum(upper, known + rounding + high), lower)
        return mean, torch.clamp(variance, lower, upper), lower, upper

    def sharpen(
        self,
        x: Tensor,
        *,
        rtol: float = 0.01,
        noise_var: float | Tensor | None = None,
        max_iterations: int = 1000,
        progress: bool = False,
    ) -> Prediction:
        """Certify the variance at a few points, by block conjugate gradients that the head preconditions.

        Cost: 4·N·C·P operations per step and column (M·C of them); 10 to 100 steps are typical. Memory: 8·P numbers per column
        solved together (1 GiB of them).
        """
        check_sharpening(rtol, max_iterations)
        before, system = self.predict(x, noise_var=noise_var), Normal(self.problem).system(self.head)
        return Sharpening(self.problem, self.head, system, rtol, max_iterations, progress).of(before, x)

    def more_draws(self, count: int, *, generator: torch.Generator | None = None, progress: bool = False) -> "LowRankPosterior":
        """The same posterior with `count` more draws: with T in total, the std has a relative error of √(1/2T).

        Cost: that of the fit's solver, for `count` columns; memory 2·P·count numbers more.

        Example:
            >>> import torch, ntkgp
            >>> net = ntkgp.mlp(1, width=16, generator=torch.Generator().manual_seed(0))
            >>> x = torch.linspace(-1, 1, 50).unsqueeze(1)
            >>> posterior = ntkgp.fit(net, x, x[:, 0].sin(), noise_var=0.1, method=ntkgp.LowRank(rank=2, draws=8))
            >>> posterior.draws, posterior.more_draws(24).draws
            (8, 32)
        """
        check_count(count, "count", 1)
        found = self._solver(generator, progress).draws(count, self.draws + count)
        return replace(self, sides=torch.cat([self.sides, found.sides], dim=1), solution=self.solution.beside(found.solution))

    def _solver(self, generator: torch.Generator | None, progress: bool = False) -> Solver:
        """The solver of more right-hand sides; with a group, rank 0's random numbers."""
        shard = self.problem.data.shard
        generator = generator if shard is None else shard.group.shared(generator)
        return Solver(self.solver, Normal(self.problem), self.head, generator, progress)

    @out_of_memory("pass fewer points of x at a time")
    def covariance(self, x: Tensor) -> Float[Tensor, "MC MC"]:
        """The joint covariance: the head in closed form, the rest from the draws.

        Without draws, the joint upper bound, which is exact if the head has all directions.
        Memory: 2·(M·C)² + M·C·(K + T) numbers.
        """
        operators, answers = self.problem.operators, self.problem.answers
        rows = operators.at(answers.checked(x))
        if not self._estimates:
            known = self.head.explained(operators.features(rows, self.head.image))
            return answers.positive(rows.gram().double() - known @ known.T)
        inside = operators.features(rows, self.head.v) * self.head.deviations
        parts = torch.cat([inside, operators.features(rows, self.rest) / self.draws**0.5], dim=1)
        return answers.cast(parts @ parts.T)

    @out_of_memory("draw fewer functions at a time (count)")
    def sample(self, count: int, *, generator: torch.Generator | None = None) -> LinearSample:
        """Draws by one more solve: exact to the solver's tolerance, with the exact posterior covariance.

        They depend neither on the rank nor on the draws of ``predict``. Cost: that of the fit's solver with `count` columns;
        memory 2·P·count numbers.
        """
        check_count(count, "count", 1)
        found = self._solver(generator).draws(count, max(count, self.draws))
        return LinearSample(self.problem, self.mean_weights + found.solution.x)

    @out_of_memory("update with fewer points at a time")
    def update(
        self,
        x: UserData,
        y: Tensor | None = None,
        *,
        noise_var: float | Tensor | None = None,
        generator: torch.Generator | None = None,
        progress: bool = False,
    ) -> "LowRankPosterior":
        """The posterior with more data: head, mean and draws start from their current values.

        The bracket is certified for all data. The rank stays the same, except that a head that spans the whole row space still
        does so afterwards. If the slack of the bracket has doubled, a block iteration improves the head (`refined` counts
        these). If the fit had batches, the new data becomes one more batch.

        Cost for m points: a product 4·N·C·P with m·C + 1 columns, about 16·P·K² operations, and a few steps of the solver.
        Memory: that of the fit; twice that if you store both posteriors.
        """
        check_updatable(self.problem)
        clock, options = Clock(self.problem.network.device), self.options
        whole, new = extend_problem(self.problem, x, y, noise_var)
        normal, shape = Normal(whole), whole.operators.shape
        clock("factors")
        rank, trace = min(shape) if self.complete else self.head.rank, whole.operators.trace
        head = with_more_rows(self.head, new.operators.whitened, normal, trace, rank)
        found, times = self.found_slack, self.refined
        if head.bracket.slack + 1 > 2 * (found + 1) or not agrees(head, normal):
            head = refined(head, normal, trace)
            found, times = head.bracket.slack, times + 1
        clock("head")
        # The draws see new noise at the new points: J̃ᵀε + ξ grows by Rᵀε.
        noise = new.data.draw_noise(self.draws, generator).double()
        seen = torch.cat([new.data.whitened_residual.double().unsqueeze(1), noise], dim=1)
        sides = self.sides + new.operators.whitened.rmatmat(seen)
        accuracy = torch.tensor([MEAN, *[draw_accuracy(self.draws)] * self.draws]).to(sides)
        solution = solved(options.solver, normal, head, sides, accuracy, self.solution.x, progress)
        clock("solve")
        return LowRankPosterior(whole, options, head, sides, solution, found, self.side, clock.seconds, times, self.why)

    def whole(self) -> "LowRankPosterior":
        """Return the same posterior with every vector whole on every rank; all ranks must call it. Memory: 6·P·K numbers."""
        space = self.problem.operators.space
        if not isinstance(space, Split):
            return self
        copies = replicated(space.group)
        problem = replace(self.problem, operators=replace(self.problem.operators, space=copies))
        head = replace(self.head, v=space.whole(self.head.v), image=space.whole(self.head.image), space=copies)
        solution = replace(self.solution, x=space.whole(self.solution.x))
        return replace(self, problem=problem, head=head, sides=space.whole(self.sides), solution=solution)

    def state(self) -> State:
        """Return all data of the posterior except the network; the mean is the first column of the solution."""
        options = self.options
        if self.problem.operators.space.spread:
            raise ValueError("this posterior is split over the ranks; call posterior.whole() on all ranks and save its result")
        if type(options.solver) is not CGLS:
            raise ValueError(f"only CGLS can be saved as solver, got {type(options.solver).__name__}: files store no code")
        return problem_state(self.problem) | State.of(
            head=self.head, sides=self.sides, solution=self.solution, found_slack=self.found_slack, side=self.side,
            seconds=self.seconds, refined=self.refined, confidence=options.confidence, solver=options.solver, why=self.why,
        )  # fmt: skip

    @classmethod
    def from_state(cls, state: State, module: nn.Module, prior_mean: MeanFunction | None) -> "LowRankPosterior":
        """Rebuild the posterior; pass `prior_mean` again if it was a function. The SVD method is not saved."""
        problem = restore_problem(state, module, prior_mean)
        head = restore_head(state, "head", problem.network.dtype)
        sides, solution = restore_draws(state, problem)
        confidence = CONFIDENCE if state.older else state.fact("confidence", float)
        check_confidence(confidence)
        return cls(
            problem=problem,
            options=Options(state.build(CGLS, "solver"), confidence),
            head=head,
            sides=sides,
            solution=solution,
            found_slack=state.fact("found_slack", float),
            side=state.fact("side", str),
            seconds=state.fact("seconds", dict),
            refined=state.fact("refined", int),
            why=why_of(state),
        )
