"""Find a head for a problem: of a given rank, or until its bracket is tight enough."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.errors import NumericalWarning
from ntkgp._system.precision import tensor_cores
from ntkgp._system.progress import Bar, progress_bar
from ntkgp.linalg.head import Head
from ntkgp.linalg.operator import Operator
from ntkgp.linalg.space import Space
from ntkgp.linalg.svd.partial_svd import SVDMethod
from ntkgp.posterior.lowrank.side import Normal
from ntkgp.problem.problem import Problem
from ntkgp.storage.stages import Stages
from ntkgp.storage.state import State

START_RANK = 32  # first rank tried if the user gives a tolerance on the bracket


@dataclass(frozen=True)
class Tolerance:
    """The relative width that the bracket must reach at some points, and the largest rank to try."""

    rtol: float
    points: Tensor
    max_rank: int


@dataclass(frozen=True)
class HeadSearch:
    """The search for heads of one problem: products, SVD method, progress bar and checkpoint."""

    problem: Problem
    normal: Normal
    svd: SVDMethod
    side: str  # "weights", "kernel" or "matrix"
    generator: torch.Generator | None
    progress: bool
    stages: Stages

    def find(self, rank: int | None, tolerance: Tolerance | None) -> tuple[Head, float | None]:
        """Find a head of this rank, or one that meets the tolerance, and its width; resume from a saved head."""
        head = _saved_head(self.stages, self.problem.operators.space)
        if tolerance is not None:
            return self.until_tight(tolerance, head)
        assert rank is not None
        return self.of_rank(rank) if head is None else head, None

    def of_rank(self, rank: int, head: Head | None = None) -> Head:
        """Find a head of this rank; start from `head` if given."""
        with self._bar() as bar:
            return self._grow(head, rank, bar)

    def until_tight(self, tolerance: Tolerance, head: Head | None) -> tuple[Head, float]:
        """Grow a head, starting from `head` if given, until its bracket is tight enough; return it and the width reached."""
        problem, from_update = self.problem, head is not None
        limit = min(tolerance.max_rank, *problem.operators.shape)
        with self._bar() as bar:
            head = self._grow(None, min(START_RANK, limit), bar) if head is None else head
            while True:
                width = bracket_width(problem, head, tolerance.points)
                bar.set_postfix(rank=head.rank, bracket=f"{width:.1e}")
                if problem.operators.space.agreed(width <= tolerance.rtol):
                    break
                if head.rank < limit:
                    head = self._grow(head, min(2 * head.rank, limit), bar)
                elif from_update and limit == min(problem.operators.shape):
                    # The head of an update is full, but some of its directions are useless: find all directions again.
                    head, from_update = self._grow(None, limit, bar), False
                else:
                    break
        if width > tolerance.rtol:
            warnings.warn(
                f"the bracket is {width:.2g} wide (relative to the upper bound) at rank {head.rank}, rtol asks for "
                f"{tolerance.rtol:.2g}; raise max_rank or noise_var",
                NumericalWarning,
                stacklevel=4,
            )
        return head, width

    def _bar(self) -> Bar:
        return progress_bar(self.progress, desc="finding the head", unit="pass", leave=False)

    def _grow(self, head: Head | None, rank: int, bar: Bar) -> Head:
        """Extend a head to `rank` directions; find all directions if there is no head."""
        operators, stage = self.problem.operators, f"subspace-{rank}"
        smallest, space = min(operators.shape), operators.space
        v = operators.draw_weights(0, self.generator).double() if head is None else head.v
        image = v if head is None else head.image
        if self.side == "kernel":
            new = self._new_from_kernel(v, rank - v.shape[1], bar)
        else:
            # Float32 is accurate enough to find a subspace, except if the subspace must be the whole row space. For a float64
            # network use float64: the subspace then agrees to many digits for any number of ranks.
            whole = rank == smallest or self.normal.matrix is not None
            dtype = torch.float64 if whole else torch.promote_types(self.problem.network.dtype, torch.float32)
            operator = self._rest_of_normal(v.to(dtype), bar)
            with tensor_cores(self.problem.network.device):
                bookmark = self.stages.bookmark(stage)
                new = self.svd.subspace(operator, rank - v.shape[1], self.generator, bookmark).double()
        new = space.beside(v, new)[:, : smallest - v.shape[1]]
        basis, images = torch.cat([v, new], dim=1), torch.cat([image, self.normal(new)], dim=1)
        found = Head.of(self.normal, basis, images, operators.trace, rank, space, operators.parameters)
        self.stages.save("head", State.of(head=found))
        self.stages.forget(stage)
        return found

    @cached_property
    def _kernel(self) -> Float[Tensor, "NC NC"]:
        return self.problem.operators.gram().double()

    def _new_from_kernel(self, v: Tensor, extra: int, bar: Bar) -> Tensor:
        """Find new directions from the kernel matrix minus the part that v explains."""
        operator, kernel = self.problem.operators.whitened, self._kernel
        left = operator.matmat(v)

        def product(u: Tensor) -> Tensor:
            bar.update()
            return kernel @ u - left @ (left.T @ u)

        return operator.rmatmat(self.svd.subspace(_symmetric(product, kernel, len(kernel)), extra, self.generator))

    def _rest_of_normal(self, v: Tensor, bar: Bar) -> Operator:
        """Return the operator (I − VVᵀ)G(I − VVᵀ): G outside the head."""
        space = self.problem.operators.space

        def product(z: Tensor) -> Tensor:
            z = self.normal(z - v @ space.gram(v, z))
            bar.update()
            return z - v @ space.gram(v, z)

        return replace(_symmetric(product, v, self.problem.operators.parameters), space=space)


def _symmetric(product: Callable[[Tensor], Tensor], like: Tensor, size: int) -> Operator:
    return Operator((size, size), product, product, like.dtype, like.device)


def _saved_head(stages: Stages, space: Space) -> Head | None:
    """Load the head of an interrupted fit; None if there is none."""
    state = stages.load("head")
    if state is None:
        return None
    return replace(state.build(Head, "head", torch.float64, v="P K", image="P K", values="K"), space=space)


def bracket_width(problem: Problem, head: Head, points: Tensor) -> float:
    """Return the largest (upper − lower)/upper at some points; 0 where both bounds are 0 (a dead network)."""
    operators = problem.operators
    rows = operators.at(points)
    prior = rows.diag().double()
    upper = prior - operators.features(rows, head.explained()).square().sum(dim=1)
    lower = head.bracket.lower(operators.features(rows, head.v), prior)
    return float(torch.where(upper > 0, 1 - lower / upper, 0.0).max())
