"""The matrix-free posterior of the linearised network: a head from a partial SVD, the rest by conjugate gradients."""

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn
from tqdm.auto import tqdm

from ntkgp._checks import check_count, check_rank
from ntkgp._types import MeanFunction, NumericalWarning
from ntkgp.archive import State
from ntkgp.linalg.cgls import CGLS, Solution
from ntkgp.linalg.head import POWERS, PROBES, Head
from ntkgp.linalg.operator import Operator
from ntkgp.linalg.svd import RandomizedSVD, SVDMethod
from ntkgp.posterior import FunctionSample, Posterior, Prediction
from ntkgp.problem import Problem
from ntkgp.stored_problem import problem_state, stored_problem
from ntkgp.tangent.memory import free_bytes

START = 32  # rank from which a tolerance on the bracket grows
STEPS = 50  # of the solver, guessed for counting costs
FEW = 3  # times as long as in a matrix product does a multiplication take in products with few columns


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
        svd: how the head is found; its passes are made in float32 (TF32 on GPUs), which only steers the subspace.
        solver: how the mean and the tail are found.
        points: where `rtol` is to hold.
        max_rank: where `rtol` stops growing K.
        dtype: of the layer factors; None keeps the module's. Products are float64 whatever it is, and the bracket encloses the
            posterior of the Jacobian in this dtype: float64 where the last digits of a float32 network matter.

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

    def fit(self, problem: Problem, generator: torch.Generator | None = None, progress: bool = False) -> "LowRankPosterior":
        """Find the head, solve for the mean and the tail."""
        clock = _Clock(problem.network.device)
        rows, parameters = problem.jacobian.shape  # the first look at J(x) computes its factors
        clock("factors")
        if (self.rank is None) == (self.rtol is None):
            raise ValueError(f"give LowRank either a rank or an rtol, got rank={self.rank}, rtol={self.rtol}")
        check_count(self.tail, "tail", 0)
        if self.rank is not None:
            check_rank(self.rank, rows, parameters)
        side = _side(problem, self.rank or START, 1 + self.tail)
        work = problem
        if side == "matrix":  # the posterior keeps the problem without it, as files do
            work = problem.written_out(progress)
            clock("matrix")
        if self.rank is not None:
            with tqdm(desc="finding the head", unit="pass", disable=not progress, leave=False) as bar:
                head, width = _grow(work, None, self.rank, self.svd, side, generator, bar), None
        else:
            head, width = self._grow_until_tight(work, side, generator, progress)
        clock("head")
        c, draws = _right_hand_sides(work, self.tail, generator)
        solution = self.solver.solve(
            work.normal, torch.cat([c, draws], dim=1), head.precondition, rough=_rough(work), progress=progress
        )
        clock("solve")
        # A draw's predictor less what seeing only the head would have predicted: a martingale difference, so its covariance
        # is exactly what the upper bound is too large by, for any head however far from converged.
        tail = solution.x[:, 1:] - head.partial_mean(draws)
        return LowRankPosterior(
            problem, head, head.explained(), solution.x[:, :1], tail, solution, side, width, self.solver, clock.seconds
        )

    def _grow_until_tight(
        self, problem: Problem, side: str, generator: torch.Generator | None, progress: bool
    ) -> tuple[Head, float]:
        assert self.rtol is not None
        x = problem.x
        if self.points is None:
            picks = torch.randperm(len(x), generator=generator)[:512]
            points = x[picks.to(x.device)]
        else:
            points = problem.checked(self.points)
        limit = min(self.max_rank, *problem.jacobian.shape)
        head, rank = None, min(START, limit)
        with tqdm(desc="finding the head", unit="pass", disable=not progress, leave=False) as bar:
            while True:
                head = _grow(problem, head, rank, self.svd, side, generator, bar)
                width = _bracket_width(problem, head, points)
                bar.set_postfix(rank=rank, bracket=f"{width:.1e}")
                if width <= self.rtol or rank == limit:
                    break
                rank = min(2 * rank, limit)
        if width > self.rtol:
            warnings.warn(
                f"the bracket is {width:.2g} wide (relative) at rank {rank}, not {self.rtol:.2g}; raise max_rank, or noise_var",
                NumericalWarning,
                stacklevel=4,
            )
        return head, width


def _grow(
    problem: Problem,
    head: Head | None,
    rank: int,
    svd: SVDMethod,
    side: str,
    generator: torch.Generator | None,
    bar: tqdm,
) -> Head:
    """A head of `rank` directions; those already found are kept, and only new ones are looked for."""
    rows, parameters = problem.jacobian.shape
    device = problem.network.device
    v = torch.zeros(parameters, 0, dtype=torch.float64, device=device) if head is None else head.v
    image = v if head is None else head.image
    extra = rank - v.shape[1]
    if side == "kernel":
        kernel, left = problem.kernel, problem.whitened.matmat(v)

        def rest_of_kernel(u: Tensor) -> Tensor:
            bar.update()
            return kernel @ u - left @ (left.T @ u)

        operator = Operator((rows, rows), rest_of_kernel, rest_of_kernel, torch.float64, device)
        new = problem.whitened.rmatmat(svd.subspace(operator, extra, generator))
    else:
        # Float32 is enough to steer a subspace, except when it is to be the whole row space to the last digit.
        whole = rank == min(rows, parameters) or problem.matrix is not None
        dtype = torch.float64 if whole else torch.float32
        steer = v.to(dtype)

        def rest_of_normal(z: Tensor) -> Tensor:
            z = problem.normal(z - steer @ (steer.T @ z))
            bar.update()
            return z - steer @ (steer.T @ z)

        operator = Operator((parameters, parameters), rest_of_normal, rest_of_normal, dtype, device)
        with _tensor_cores():
            new = svd.subspace(operator, extra, generator).double()
    for _ in range(2):
        new = torch.linalg.qr(new - v @ (v.T @ new)).Q
    new = new[:, : min(rows, parameters) - v.shape[1]]
    basis, images = torch.cat([v, new], dim=1), torch.cat([image, problem.normal(new)], dim=1)
    return Head.of(problem.normal, basis, images, problem.trace, rank)


def _side(problem: Problem, columns: int, solved: int) -> str:
    """Where to look for the head and to solve, by counted cost, of what fits in memory.

    On the "weights" side a product takes 2·NC·P multiplications a column: four are made to steer the head, one to certify it
    and, of few columns and so at a third of the speed, STEPS by the solver and POWERS for the bound on the rest. With the
    "kernel" J̃J̃ᵀ written out, after the N²/2 comparisons of points that form it, those that steer take (NC)². With the "matrix"
    G = J̃ᵀJ̃ written out, after NC·P²/2, all take P². What is written out and what certifies is float64, which counts twice
    beside float32 factors.
    """
    rows, parameters = problem.jacobian.shape
    free = free_bytes(problem.network.device)
    weight = 2 if problem.network.dtype == torch.float32 else 1
    pass_over = 2 * rows * parameters
    steer, certify = 4 * columns, weight * columns + FEW * (STEPS * solved + weight * POWERS * PROBES)
    forming = problem.points**2 / 2 * problem.tangent.chunk(problem.network.cast(problem.x[:1])).kernel_operations
    costs: dict[str, float] = {"weights": (steer + certify) * pass_over}
    if 4 * 8 * rows**2 < free:
        costs["kernel"] = weight * (forming + steer * rows**2) + certify * pass_over
    if 4 * 8 * parameters**2 < free:
        costs["matrix"] = weight * (rows * parameters**2 / 2 + (steer + certify) * parameters**2)
    return min(costs, key=lambda side: costs[side])


def _rough(problem: Problem) -> Callable[[Tensor], Tensor] | None:
    """G v in float32, where the factors are float32 anyway: faster, and the solver checks itself in float64."""
    if problem.network.dtype != torch.float32 or problem.matrix is not None:
        return None
    return lambda v: problem.normal(v.float()).double()


def _right_hand_sides(problem: Problem, draws: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """J̃ᵀ r̃, and J̃ᵀ(J̃z + ε) for some standard normal z and ε."""
    operator, r = problem.whitened, problem.whitened_residual.double()
    z = operator.normal(operator.shape[1], draws, generator).double()
    noise = operator.normal(operator.shape[0], draws, generator).double()
    both = operator.rmatmat(torch.cat([r.unsqueeze(1), noise], dim=1))
    return both[:, :1], (problem.normal(z) if draws else z) + both[:, 1:]


def _bracket_width(problem: Problem, head: Head, points: Tensor) -> float:
    """The widest (upper − lower)/upper at some points."""
    jacobian = problem.tangent.at(points)
    prior = jacobian.diag().double()
    upper = prior - jacobian.matmat(head.explained()).square().sum(dim=1)
    return float((1 - head.lower(jacobian.matmat(head.v), prior) / upper.clamp_min(1e-300)).max())


class _Clock:
    """Seconds between calls, by name, once the device has caught up."""

    def __init__(self, device: torch.device):
        self.device, self.seconds, self.last = device, dict[str, float](), time.perf_counter()

    def __call__(self, stage: str) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        self.seconds[stage], self.last = now - self.last, now


@contextlib.contextmanager
def _tensor_cores() -> Iterator[None]:
    """Float32 products on the GPU's tensor cores (TF32): enough to steer a subspace, not to certify it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@dataclass(frozen=True)
class LowRankPosterior(Posterior):
    """The linearised posterior as weights: the mean, the head and the tail are columns to multiply J(x) with."""

    problem: Problem
    head: Head
    explained: Float[Tensor, "P K"]
    mean_weights: Float[Tensor, "P 1"]
    tail: Float[Tensor, "P T"]
    solution: Solution
    side: str  # "weights", "kernel" or "matrix": how the products were made, whichever was cheapest
    bracket_width: float | None  # reached, where rtol asked for it
    solver: CGLS
    seconds: dict[str, float]  # spent on each stage

    kind = "low rank"

    def mean(self, x: Tensor) -> Tensor:
        """The mean by a product with J(x). Cost: 2·M·C·P operations; memory the factors of a block of queries."""
        problem, x = self.problem, self.problem.checked(x)
        parts = [problem.mean_at(part).double() + problem.tangent.at(part).matmat(self.mean_weights)[:, 0]
                 for part in x.split(16384)]  # fmt: skip
        return problem.shaped(torch.cat(parts))

    def predict(self, x: Tensor, *, noise_var: float | Tensor | None = None) -> Prediction:
        """Mean, variance and bracket by products with J(x).

        Cost: 2·M·C·P·(2K + T + 1) operations; memory one working set beside the factors of a block of queries.
        """
        problem, x = self.problem, self.problem.checked(x)
        parts = [self._predict(part) for part in x.split(16384)]
        mean, variance, lower, upper = (problem.shaped(torch.cat(column)) for column in zip(*parts, strict=True))
        noise = problem.noise_at(x, noise_var)
        return Prediction(mean, variance, lower, upper, None if noise is None else problem.shaped(noise.flatten()))

    def _predict(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        jacobian = self.problem.tangent.at(x)
        prior = jacobian.diag().double()
        both = jacobian.matmat(torch.cat([self.mean_weights, self.tail], dim=1))
        lower = self.head.lower(jacobian.matmat(self.head.v), prior)
        upper = prior - jacobian.matmat(self.explained).square().sum(dim=1)
        # The two bounds meet at full rank: rounding must not turn them around.
        upper = torch.maximum(upper, lower)
        variance = upper - both[:, 1:].square().sum(dim=1) / max(self.tail.shape[1], 1)
        mean = self.problem.mean_at(x).double() + both[:, 0]
        return mean, torch.clamp(variance, lower, upper), lower, upper

    def covariance(self, x: Tensor) -> Float[Tensor, "MC MC"]:
        """The joint upper bound less the tail's estimate, its negative part removed. Memory: 3·(M·C)² + M·C·(K + T) numbers."""
        jacobian = self.problem.tangent.at(self.problem.checked(x))
        known = jacobian.matmat(torch.cat([self.explained, self.tail / max(self.tail.shape[1], 1) ** 0.5], dim=1))
        values, vectors = torch.linalg.eigh(jacobian.kernel().double() - known @ known.T)
        return (vectors * values.clamp_min(0) @ vectors.T).to(self.problem.user_dtype)

    def sample(self, count: int, *, generator: torch.Generator | None = None) -> FunctionSample:
        """Draws by one more solve. Cost: that of the mean with `count` right-hand sides; memory 6·P·count numbers."""
        check_count(count, "count", 1)
        operator = self.problem.whitened
        rows, parameters = operator.shape
        z = operator.normal(parameters, count, generator).double()
        noise = operator.normal(rows, count, generator).double()
        surprise = self.problem.whitened_residual.double().unsqueeze(1) - noise
        c = operator.rmatmat(surprise) - self.problem.normal(z)
        solution = self.solver.solve(self.problem.normal, c, self.head.precondition, rough=_rough(self.problem))
        return FunctionSample(self.problem, z + solution.x)

    def state(self) -> State:
        """All that the posterior is made of, less the network; the mean is the first column of the solution."""
        if type(self.solver) is not CGLS:
            raise ValueError(f"only CGLS can be saved as solver, got {type(self.solver).__name__}, which is code")
        return problem_state(self.problem) | State.of(
            head=self.head, explained=self.explained, solution=self.solution, tail=self.tail, side=self.side,
            bracket_width=self.bracket_width, solver=self.solver, seconds=self.seconds,
        )  # fmt: skip

    @classmethod
    def from_state(cls, state: State, module: nn.Module, prior_mean: MeanFunction | None) -> "LowRankPosterior":
        """The posterior again; prior_mean is the function, where it was one."""
        problem, double = stored_problem(state, module, prior_mean), torch.float64
        tail = state.tensor("tail", "P T", double)
        solution = state.build(Solution, "solution", double, x="P 1+T")
        return cls(
            problem=problem,
            head=state.build(Head, "head", double, v="P K", image="P K", values="K"),
            explained=state.tensor("explained", "P L", double),
            mean_weights=solution.x[:, :1],
            tail=tail,
            solution=solution,
            side=state.fact("side", str),
            bracket_width=state.fact("bracket_width", float, type(None)),
            solver=state.build(CGLS, "solver"),
            seconds=state.fact("seconds", dict),
        )
