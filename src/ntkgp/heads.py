"""Finding a head for a regression problem: by products with G in weight space or with the kernel, of a rank or to a width."""

import warnings
from dataclasses import replace

import torch
from torch import Tensor

from ntkgp._bookmark import NOWHERE
from ntkgp._progress import Bar, progress_bar
from ntkgp._types import NumericalWarning
from ntkgp.archive import State
from ntkgp.checkpoint import Progress
from ntkgp.linalg.head import POWERS, PROBES, Head
from ntkgp.linalg.operator import Operator
from ntkgp.linalg.space import Space
from ntkgp.linalg.svd import SVDMethod
from ntkgp.problem import Problem
from ntkgp.tangent.memory import free_bytes
from ntkgp.tangent.precision import tensor_cores

START = 32  # rank from which a tolerance on the bracket grows
STEPS = 50  # of the solver, guessed for counting costs
FEW = 3  # times as long as in a matrix product does a multiplication take in products with few columns


def grow_until_tight(
    problem: Problem,
    head: Head | None,
    rtol: float,
    points: Tensor,
    max_rank: int,
    svd: SVDMethod,
    side: str,
    generator: torch.Generator | None,
    progress: bool,
    kept: Progress,
) -> tuple[Head, float]:
    """A head whose bracket is as tight as asked for, from one that is there or from none; and the width reached."""
    points = problem.checked(points)
    limit, taken_over = min(max_rank, *problem.shape), head is not None
    with progress_bar(progress, desc="finding the head", unit="pass", leave=False) as bar:
        if head is None:
            head = grow(problem, None, min(START, limit), svd, side, generator, bar, kept)
        while True:
            width = bracket_width(problem, head, points)
            bar.set_postfix(rank=head.rank, bracket=f"{width:.1e}")
            if problem.space.agreed(width <= rtol):
                break
            if head.rank < limit:
                head = grow(problem, head, min(2 * head.rank, limit), svd, side, generator, bar, kept)
            elif taken_over and limit == min(problem.shape):
                # The head of an update has no place left, and some of its directions never mattered: all of them anew.
                head, taken_over = grow(problem, None, limit, svd, side, generator, bar, kept), False
            else:
                break
    if width > rtol:
        warnings.warn(
            f"the bracket is {width:.2g} wide (relative) at rank {head.rank}, not {rtol:.2g}; raise max_rank, or noise_var",
            NumericalWarning,
            stacklevel=4,
        )
    return head, width


def grow(
    problem: Problem,
    head: Head | None,
    rank: int,
    svd: SVDMethod,
    side: str,
    generator: torch.Generator | None,
    bar: Bar,
    kept: Progress | None = None,
) -> Head:
    """A head of `rank` directions; those already found are kept, and only new ones are looked for."""
    stage = f"subspace-{rank}"
    bookmark = NOWHERE if kept is None else kept.bookmark(stage)
    rows, parameters = problem.shape
    device, space = problem.network.device, problem.space
    v = problem.weights_normal(0, generator).double() if head is None else head.v
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
        # Float32 is enough to steer a subspace, except when it is to be the whole row space to the last digit. For a float64
        # network float64: the same subspace then, to many digits, in whatever order and on however many ranks sums are made.
        whole = rank == min(rows, parameters) or problem.matrix is not None
        dtype = torch.float64 if whole else torch.promote_types(problem.network.dtype, torch.float32)
        steer = v.to(dtype)

        def rest_of_normal(z: Tensor) -> Tensor:
            z = problem.normal(z - steer @ space.gram(steer, z))
            bar.update()
            return z - steer @ space.gram(steer, z)

        operator = Operator((parameters, parameters), rest_of_normal, rest_of_normal, dtype, device, space=space)
        with tensor_cores(device):
            new = svd.subspace(operator, extra, generator, bookmark).double()
    new = space.beside(v, new)[:, : min(rows, parameters) - v.shape[1]]
    basis, images = torch.cat([v, new], dim=1), torch.cat([image, problem.normal(new)], dim=1)
    found = Head.of(problem.normal, basis, images, problem.trace, rank, space, parameters)
    if kept is not None:
        kept.save("head", State.of(head=found))
        kept.forget(stage)
    return found


def kept_head(kept: Progress, space: Space) -> Head | None:
    """The head that a fit before had found."""
    state = kept.load("head")
    if state is None:
        return None
    return replace(state.build(Head, "head", torch.float64, v="P K", image="P K", values="K"), space=space)


def choose_side(problem: Problem, columns: int, solved: int) -> str:
    """Where to look for the head and to solve, by counted cost, of what fits in memory.

    On the "weights" side a product takes 2·NC·P multiplications a column: four are made to steer the head, one to certify it
    and, of few columns and so at a third of the speed, STEPS by the solver and POWERS for the bound on the rest. With the
    "kernel" J̃J̃ᵀ written out, after the N²/2 comparisons of points that form it, those that steer take (NC)². With the "matrix"
    G = J̃ᵀJ̃ written out, after NC·P²/2, all take P². What is written out and what certifies is float64, which counts twice
    beside float32 factors.
    """
    rows, parameters = problem.shape
    free = free_bytes(problem.network.device)
    weight = 2 if problem.network.dtype == torch.float32 else 1
    pass_over = 2 * rows * parameters
    steer, certify = 4 * columns, weight * columns + FEW * (STEPS * solved + weight * POWERS * PROBES)
    forming = problem.points**2 / 2 * problem.tangent.chunk(problem.network.cast(problem.few[:1])).kernel_operations
    costs: dict[str, float] = {"weights": (steer + certify) * pass_over}
    if 4 * 8 * rows**2 < free and problem.shard is None:  # else the kernel is nowhere
        costs["kernel"] = weight * (forming + steer * rows**2) + certify * pass_over
    if 4 * 8 * parameters**2 < free and not problem.space.spread:
        costs["matrix"] = weight * (rows * parameters**2 / 2 + (steer + certify) * parameters**2)
    chosen = min(costs, key=lambda side: costs[side])
    return chosen if problem.shard is None else problem.shard.group.facts(chosen)[0]


def bracket_width(problem: Problem, head: Head, points: Tensor) -> float:
    """The widest (upper − lower)/upper at some points; where the network is dead both are 0, and so is that."""
    jacobian = problem.tangent.at(points)
    prior = jacobian.diag().double()
    upper = prior - problem.features(jacobian, head.explained()).square().sum(dim=1)
    lower = head.lower(problem.features(jacobian, head.v), prior)
    return float(torch.where(upper > 0, 1 - lower / upper, 0.0).max())
