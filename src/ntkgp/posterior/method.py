"""What a method is: an object with its own options that turns a problem into a posterior."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ntkgp.distributed.group import Group
from ntkgp.posterior.interface import Posterior
from ntkgp.problem.problem import Problem
from ntkgp.storage.checkpoint import Checkpoint


@dataclass(frozen=True)
class Run:
    """What one call of ``fit`` brings beside the problem."""

    generator: torch.Generator | None = None
    progress: bool = False
    checkpoint: Checkpoint | None = None
    group: Group | None = None

    @property
    def shows_progress(self) -> bool:
        """Whether this process draws progress bars: of several ranks, the first."""
        return self.progress and (self.group is None or self.group.first)


class Method(ABC):
    """A way to compute a posterior.

    Attributes:
        dtype: of the Jacobian; None for the module's own.
        takes_shards: whether the rows may lie on several ranks or come as batches; if not, ``fit`` gathers all of them.
        resumes: whether ``fit`` can resume it from a checkpoint.
    """

    dtype: Any  # torch.dtype | None; a field of some methods, a constant of others
    takes_shards: ClassVar[bool] = False
    resumes: ClassVar[bool] = True

    def most_rows(self, device: torch.device) -> int | None:
        """How many rows N·C a group may gather for it on each rank; None for any number."""
        return None

    @abstractmethod
    def fit(self, problem: Problem, run: Run) -> Posterior:
        """The posterior of a problem."""


def check_method(method: Any, checkpoint: Checkpoint | None) -> Method:
    """A method object, which can be resumed if there is a checkpoint."""
    if not isinstance(method, Method):
        raise TypeError(f"method must be Exact(...), LowRank(...) or TrainedNetworks(...), got {method!r}; add parentheses?")
    if checkpoint is not None and not method.resumes:
        raise ValueError("checkpoint is for LowRank and TrainedNetworks; Exact() has nothing to go on from")
    return method
