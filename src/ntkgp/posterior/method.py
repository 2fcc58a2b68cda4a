"""The interface of a method: an object with options that turns a problem into a posterior."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch

from ntkgp.distributed.group import Group
from ntkgp.posterior.interface import Posterior
from ntkgp.problem.problem import Problem
from ntkgp.storage.checkpoint import Checkpoint


@dataclass(frozen=True)
class Run:
    """The arguments of one ``fit`` call that are not part of the problem."""

    generator: torch.Generator | None = None
    progress: bool = False
    checkpoint: Checkpoint | None = None
    group: Group | None = None
    why: str = "you chose it"  # the reason for the method

    @property
    def shows_progress(self) -> bool:
        """Whether this process draws progress bars: with a group, only rank 0 does."""
        return self.progress and (self.group is None or self.group.first)


class Method(ABC):
    """A way to compute a posterior.

    Attributes:
        dtype: dtype of the Jacobian; None for the module's dtype.
    """

    dtype: Any  # torch.dtype | None; a field of some methods, a constant of others

    @property
    def takes_shards(self) -> bool:
        """Whether the rows may be distributed over ranks or come as batches; if not, ``fit`` gathers all rows."""
        return False

    @property
    def resumes(self) -> bool:
        """Whether ``fit`` can resume this method from a checkpoint."""
        return True

    def most_rows(self, device: torch.device) -> int | None:
        """Return how many rows N·C a group may gather on each rank; None for any number."""
        return None

    @abstractmethod
    def fit(self, problem: Problem, run: Run) -> Posterior:
        """Compute the posterior of a problem."""


def check_method(method: Any) -> Method:
    """Return the method; raise if it is not one."""
    if not isinstance(method, Method):
        raise TypeError(
            f"method must be Exact(...), LowRank(...) or TrainedNetworks(...), got {method!r}; did you forget the parentheses?"
        )
    return method


def check_resumes(method: Method, checkpoint: Checkpoint | None) -> None:
    """Raise if the method cannot use the checkpoint."""
    if checkpoint is not None and not method.resumes:
        raise ValueError(
            "checkpoint is for LowRank, TrainedNetworks and Exact(side='weights'): the kernel matrix cannot be resumed; leave "
            "checkpoint out"
        )
