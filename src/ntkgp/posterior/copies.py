"""Copies and pickles of posteriors and of functions drawn from them.

A pickle holds the state, as a file does, and what files leave out: the module, in the dtypes that the user passed, and a prior
mean that is a function. A deep copy shares what belongs to the user or the process: the source of batches, and the group.
"""

import copy
from abc import ABC, abstractmethod
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from ntkgp._system.types import MeanFunction
from ntkgp.problem.prior_mean import GivenMean
from ntkgp.problem.problem import Problem
from ntkgp.storage.state import State

Same = TypeVar("Same", bound="Copyable")


class Copyable(ABC):
    """An object that never changes and holds a problem: it can be copied, and pickled if the user's module can."""

    problem: Problem

    @abstractmethod
    def state(self) -> State:
        """Return all data of the object except the network."""

    @classmethod
    @abstractmethod
    def from_state(cls, state: State, module: nn.Module, prior_mean: MeanFunction | None) -> "Copyable":
        """Rebuild the object; pass `prior_mean` again if it was a function."""

    def __copy__(self: Same) -> Same:
        return self

    def __deepcopy__(self: Same, memo: dict[int, Any]) -> Same:
        data, other = self.problem.data, object.__new__(type(self))
        shared = [None if data.batches is None else data.batches.source, None if data.shard is None else data.shard.group]
        memo.update({id(self): other} | {id(part): part for part in shared if part is not None})
        with self.problem.network.lock:  # another thread may be calling the module with other weights
            vars(other).update(copy.deepcopy(vars(self), memo))
        return other

    def __getstate__(self) -> dict[str, Any]:
        problem = self.problem
        if any(is_parametrized(part) for part in problem.network.module.modules()):
            raise TypeError(
                "the module has parametrised weights (as by weight_norm or spectral_norm), which torch cannot pickle; use "
                "posterior.save(path), and ntkgp.load(path, module) where it is needed"
            )
        state = self.state()
        with problem.network.lock:
            module = copy.deepcopy(problem.network.module)
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            tensor.data = tensor.data.to(getattr(torch, problem.module_dtypes[name].removeprefix("torch.")))
        tensors = {name: _compact(tensor) for name, tensor in state.tensors.items()}
        mean = problem.answers.prior_mean
        function = mean.function if isinstance(mean, GivenMean) else None
        return {"state": State(tensors, state.facts), "module": module, "prior_mean": function}

    def __setstate__(self, parts: dict[str, Any]) -> None:
        vars(self).update(vars(type(self).from_state(**parts)))


def _compact(tensor: Tensor) -> Tensor:
    """Copy a tensor that is a part of a larger one, which pickle would store as a whole."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size() else tensor.clone()
