"""Find a head for a problem."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.progress import Bar, progress_bar
from ntkgp._system.settings import tensor_cores
from ntkgp.linalg.head import Head
from ntkgp.linalg.operator import Operator
from ntkgp.linalg.space import WHOLE, Space
from ntkgp.linalg.svd.partial_svd import SVDMethod
from ntkgp.posterior.lowrank.side import Normal
from ntkgp.problem.problem import Problem
from ntkgp.storage.stages import Stages
from ntkgp.storage.state import State


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

    def of_rank(self, rank: int) -> Head:
        """Find a head of this rank, or load it from the checkpoint."""
        operators, stage = self.problem.operators, f"subspace-{rank}"
        saved = _saved_head(self.stages, operators.space)
        if saved is not None:
            return saved
        with progress_bar(self.progress, desc="finding the head", unit="pass", leave=False) as bar:
            basis = operators.space.orthonormal(self._subspace(rank, bar, stage))[:, : min(operators.shape)]
            image = self.normal(basis)
        unit = self.problem.network.unit
        found = Head.of(self.normal, basis, image, operators.trace, rank, operators.space, unit)
        self.stages.save("head", State.of(head=found))
        self.stages.forget(stage)
        return found

    def _subspace(self, rank: int, bar: Bar, stage: str) -> Float[Tensor, "P Q"]:
        """About the first singular directions, from products with G or with the kernel."""
        operators = self.problem.operators
        if self.side == "kernel":
            kernel = operators.gram().double()
            product, size, like = kernel.matmul, len(kernel), kernel
        else:
            # Float32 is accurate enough to find a subspace, except if the subspace must be the whole row space. For a float64
            # network use float64: the subspace then agrees to many digits for any number of ranks.
            whole = rank == min(operators.shape) or self.normal.matrix is not None
            product, size = self.normal, operators.parameters
            like = torch.empty(
                0, dtype=torch.float64 if whole else self.problem.steering_dtype, device=self.problem.network.device
            )

        def counted(v: Tensor) -> Tensor:
            bar.update()
            return product(v)

        space = operators.space if self.side != "kernel" else WHOLE
        operator = Operator((size, size), counted, counted, like.dtype, like.device, space=space)
        if self.side == "kernel":
            return operators.whitened.rmatmat(self.svd.subspace(operator, rank, self.generator))
        with tensor_cores(self.problem.network.device):
            return self.svd.subspace(operator, rank, self.generator, self.stages.bookmark(stage)).double()


def _saved_head(stages: Stages, space: Space) -> Head | None:
    """Load the head of an interrupted fit; None if there is none."""
    state = stages.load("head")
    if state is None:
        return None
    return replace(state.build(Head, "head", torch.float64, v="P K", image="P K", values="K"), space=space)
