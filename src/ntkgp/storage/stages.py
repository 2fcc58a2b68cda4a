"""Long work that survives: the state of a fit in a folder, from which a fit begun again goes on.

One safetensors file a stage, with JSON in its header (:mod:`ntkgp.archive`): whole or not there, its sha256 checked when it is
read. ``start`` says which fit it belongs to and where its random numbers begin; the others hold what was found (a head, a plan)
or how far an iteration has come. Vectors are kept whole, so the number of ranks may change in between.
"""

import contextlib
import copy
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ntkgp._system.errors import CheckpointWarning
from ntkgp._system.resume import Bookmark
from ntkgp.distributed.group import Group
from ntkgp.distributed.split_space import Split
from ntkgp.linalg.space import WHOLE, Space
from ntkgp.storage.checkpoint import Checkpoint
from ntkgp.storage.file import read, write
from ntkgp.storage.replace import sweep
from ntkgp.storage.state import State

KIND, START = "checkpoint", "start"


class Stages:
    """The state of one fit, kept in a folder or, where there is none, not at all.

    Args:
        checkpoint: where; None for nowhere.
        identity: what makes it this fit: numbers that must agree to nine digits, and words.
        generator: whose state is part of that of the fit.
        device: where tensors are to be.
        group: the ranks, of which the first reads and writes.
        space: of vectors over the weights, which in files are whole; these are the tensors with two axes.
    """

    def __init__(
        self,
        checkpoint: Checkpoint | None,
        identity: dict[str, Any],
        generator: torch.Generator | None,
        device: torch.device,
        group: Group | None = None,
        space: Space = WHOLE,
    ) -> None:
        self.group, self.space, self.device = group, space, device
        self.folder = None if checkpoint is None else Path(checkpoint.folder)
        self.every = 0.0 if checkpoint is None else checkpoint.every
        self.generator = generator
        if self.folder is None:
            return
        if generator is None:  # a generator of our own, which can be put back
            self.generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
        self._make_folder()
        kept = self.load(START)
        if kept is None:
            self.save(START, State(facts={"identity": identity}), must=True)
        else:
            _check_identity(self.folder, kept.fact("identity", dict), identity)

    def load(self, stage: str) -> State | None:
        """What was kept of a stage; the generator is put where it was then."""
        if self.folder is None:
            return None
        state, path = None, self._path(stage)
        if self.writes and path.is_file():
            kind, state = read(path, torch.device("cpu"))
            if kind != KIND:
                raise ValueError(f"{path} is no checkpoint but holds a {kind}; give another folder")
        if self.group is not None:
            state = self._broadcast(state)
        if state is None:
            return None
        if self.generator is not None and "generator" in state.tensors:
            kept = state.tensors.pop("generator")
            if len(kept) != len(self.generator.get_state()):
                raise ValueError(f"{self.folder} was written with a generator on another device; pass one like it")
            self.generator.set_state(kept.cpu())  # where the others' tensors came over a group of GPUs
        rows = self.space.rows if isinstance(self.space, Split) else slice(None)
        tensors = {name: (t[rows] if t.ndim == 2 else t).to(self.device) for name, t in state.tensors.items()}
        return State(tensors, state.facts)

    def save(self, stage: str, state: State, must: bool = False) -> None:
        """Keep a stage: all of it or, with a warning, what was there before."""
        if self.folder is None:
            return
        tensors = state.tensors
        if isinstance(self.space, Split):
            tensors = {name: self.space.whole(t) if t.ndim == 2 else t for name, t in tensors.items()}
        if not self.writes:
            return
        assert self.generator is not None
        path = self._path(stage)
        try:
            write(path, KIND, State(tensors | {"generator": self.generator.get_state()}, state.facts))
        except OSError as error:
            if must:
                raise _unwritable(self.folder, error) from error
            warnings.warn(
                f"no checkpoint could be written ({error}); the fit goes on, and {self.folder} holds the one before; free "
                "space there, or make it writable",
                CheckpointWarning,
                stacklevel=2,
            )

    def once(self, stage: str, value: str) -> str:
        """A choice as it was made when the fit was begun."""
        kept = self.load(stage)
        if kept is None:
            self.save(stage, State(facts={"value": value}))
            return value
        return kept.fact("value", str)

    def forget(self, stage: str) -> None:
        """A stage that is not needed any more."""
        if self.folder is not None and self.writes:
            with contextlib.suppress(OSError):  # left there, it does no harm
                self._path(stage).unlink(missing_ok=True)

    def alone(self) -> "Stages":
        """The same for what each rank does by itself, and reads and writes by itself."""
        other = copy.copy(self)
        other.group = None
        return other

    def bookmark(self, stage: str) -> Bookmark:
        """Where an iteration keeps its state."""
        return _InFolder(self, stage)

    @property
    def writes(self) -> bool:
        """Whether this process reads and writes the files."""
        return self.group is None or self.group.first

    def _path(self, stage: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{stage}.safetensors"

    def _make_folder(self) -> None:
        assert self.folder is not None
        if not self.writes:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            sweep(self.folder)
        except OSError as error:
            raise _unwritable(self.folder, error) from error

    def same(self, state: State) -> State:
        """A state as rank 0 has it, where every rank has computed its own; theirs may differ by rounding."""
        return state if self.group is None else self._broadcast(state) or state

    def _broadcast(self, state: State | None) -> State | None:
        """Rank 0's state on all ranks."""
        assert self.group is not None
        known = self.group.facts(None if state is None else [list(state.tensors), state.facts])[0]
        if known is None:
            return None
        names, facts = known
        found = {name: self.group.copied(None if state is None else state.tensors[name], self.device) for name in names}
        return State({name: t for name, t in found.items() if t is not None}, facts)


class _InFolder(Bookmark):
    """The state of an iteration as a stage of a checkpoint, written now and then."""

    def __init__(self, progress: Stages, stage: str) -> None:
        self.progress, self.stage, self.last = progress, stage, time.monotonic()

    def load(self) -> dict[str, Tensor] | None:
        """What was left, or None at the beginning."""
        state = self.progress.load(self.stage)
        return None if state is None else state.tensors

    def save(self, state: Callable[[], dict[str, Tensor]]) -> None:
        """Keep the state if it is time to."""
        progress = self.progress
        if progress.folder is None:
            return
        due = progress.writes and time.monotonic() - self.last >= progress.every
        if progress.space.agreed(due) if progress.space.spread else due:
            progress.save(self.stage, State(tensors=state()))
            self.last = time.monotonic()


def _unwritable(folder: Path, error: OSError) -> OSError:
    return OSError(error.errno, f"cannot keep a checkpoint in {folder}: {error}; give another folder")


def _check_identity(folder: Path, kept: dict[str, Any], given: dict[str, Any]) -> None:
    for name, value in given.items():
        before = kept.get(name)
        close = isinstance(value, float) and isinstance(before, float | int) and math.isclose(value, before, rel_tol=1e-9)
        if not close and before != value:
            raise ValueError(
                f"the checkpoint in {folder} belongs to another fit: {name} was {before!r}, is {value!r}; give another folder, "
                "or delete it to start anew"
            )
