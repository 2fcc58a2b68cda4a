"""Saves the state of a fit to a folder, so that an interrupted fit can resume.

One safetensors file per stage, with JSON in its header (:mod:`ntkgp.storage.file`): complete or absent, with its sha256 checked
on reading. Each identifies its fit. ``start`` holds the initial state of the random numbers; the other stages hold results (a
head, a plan) or the progress of an iteration. Files hold complete vectors, so a fit can resume with another number of ranks.
"""

import contextlib
import copy
import errno
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
from ntkgp.storage.lock import InUseError
from ntkgp.storage.replace import check_plain, sweep
from ntkgp.storage.state import State

KIND = "checkpoint"  # kind of the files
START = "start"  # stage that is written first


class Stages:
    """The saved state of one fit. Without a checkpoint folder it saves nothing.

    Args:
        checkpoint: the folder; None saves nothing.
        identity: facts that identify the fit; every file holds them, and a file with others is refused. Floats need only
            agree up to rounding: to nine digits in float64, to four in another ``identity["dtype"]``.
        generator: its state is saved with every stage.
        device: the device for loaded tensors.
        group: the ranks; rank 0 reads and writes.
        space: the space of vectors over the weights (all tensors with two axes); files hold complete vectors.
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
        self.generator, self.identity = generator, identity
        self._own: set[str] = set()  # the stages that this fit wrote or read
        if checkpoint is None or self.folder is None:
            return
        if generator is None:  # create one: restoring its state must not change torch's global generator
            self.generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
        self._open_folder(checkpoint)
        if self.load(START) is None:
            self.save(START, State(), must=True)

    def load(self, stage: str) -> State | None:
        """Load a stage, or None if it was never saved; also restore the generator to its state at that time."""
        if self.folder is None:
            return None
        state, path = None, self._path(stage)
        if self.writes and path.is_file():
            kind, state = read(path, torch.device("cpu"))
            if kind != KIND:
                raise ValueError(f"{path} is not a checkpoint (it holds a {kind}); pass another folder")
        if self.group is not None:
            state = self._broadcast(state)
        if state is None:
            return None
        self._check_identity(state.facts.pop("identity", {}))
        self._own.add(stage)
        if self.generator is not None and "generator" in state.tensors:
            saved = state.tensors.pop("generator")
            if len(saved) != len(self.generator.get_state()):
                raise ValueError(
                    f"the checkpoint in {self.folder} was written with a generator on another type of device than "
                    f"{self.generator.device}; pass a generator on that device"
                )
            self.generator.set_state(saved.cpu())  # a broadcast may have put it on a GPU
        rows = self.space.rows if isinstance(self.space, Split) else slice(None)
        tensors = {name: (t[rows] if t.ndim == 2 else t).to(self.device) for name, t in state.tensors.items()}
        return State(tensors, state.facts)

    def save(self, stage: str, state: State, must: bool = False) -> None:
        """Save a stage. If that fails, warn and leave the previous file in place; with `must`, raise OSError."""
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
            tensors = tensors | {"generator": self.generator.get_state()}
            write(path, KIND, State(tensors, state.facts | {"identity": self.identity}))
            self._own.add(stage)
        except (OSError, ValueError) as error:  # ValueError: a folder, a link or a device has the name of the file
            if must:
                raise _unwritable(self.folder, error) from error
            warnings.warn(
                f"could not write a checkpoint ({error}); the fit continues, and {self.folder} still holds the previous one; "
                "free up the disk, or make the folder writable",
                CheckpointWarning,
                stacklevel=2,
            )

    def once(self, stage: str, value: str) -> str:
        """Return the saved choice of a stage; if there is none, save `value` and return it."""
        saved = self.load(stage)
        if saved is None:
            self.save(stage, State(facts={"value": value}))
            return value
        return saved.fact("value", str)

    def forget(self, stage: str) -> None:
        """Delete a stage that is no longer needed, if this fit wrote or read it: another file of that name is not ours."""
        if self.folder is not None and self.writes and stage in self._own:
            with contextlib.suppress(OSError, ValueError):  # a file left behind does no harm
                check_plain(self._path(stage))  # a link or a device is not ours
                self._path(stage).unlink(missing_ok=True)

    def alone(self) -> "Stages":
        """A copy without the group, for rank-local work: each rank reads and writes its stages separately."""
        other = copy.copy(self)
        other.group = None
        return other

    def bookmark(self, stage: str) -> Bookmark:
        """A bookmark that saves the state of an iteration as a stage."""
        return _StageBookmark(self, stage)

    @property
    def writes(self) -> bool:
        """Whether this process reads and writes the files."""
        return self.group is None or self.group.first

    def _path(self, stage: str) -> Path:
        """The file of a stage."""
        assert self.folder is not None
        return self.folder / f"{stage}.safetensors"

    def _open_folder(self, checkpoint: Checkpoint) -> None:
        """Create the folder, reserve it for this fit, and remove what killed writes left there."""
        assert self.folder is not None
        if not self.writes:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            checkpoint.reserve()
            sweep(self.folder)
        except InUseError:
            raise
        except OSError as error:
            raise _unwritable(self.folder, error) from error

    def _check_identity(self, saved: dict[str, Any]) -> None:
        """Raise ValueError if a file with these facts belongs to another fit."""
        rounding = 1e-9 if self.identity.get("dtype") == str(torch.float64) else 1e-4
        for name, value in self.identity.items():
            before = saved.get(name)
            close = (
                isinstance(value, float) and isinstance(before, float | int) and math.isclose(value, before, rel_tol=rounding)
            )
            if not close and before != value:
                raise ValueError(
                    f"the checkpoint in {self.folder} belongs to another fit: {name} was {before!r} and is now {value!r}; pass "
                    "another folder, or delete this one to start again"
                )

    def same(self, state: State) -> State:
        """Return rank 0's state on all ranks; states computed separately may differ by rounding."""
        return state if self.group is None else self._broadcast(state) or state

    def _broadcast(self, state: State | None) -> State | None:
        """Copy rank 0's state to all ranks."""
        assert self.group is not None
        known = self.group.facts(None if state is None else [list(state.tensors), state.facts])[0]
        if known is None:
            return None
        names, facts = known
        found = {name: self.group.copied(None if state is None else state.tensors[name], self.device) for name in names}
        return State({name: t for name, t in found.items() if t is not None}, facts)


class _StageBookmark(Bookmark):
    """Saves the state of an iteration as a stage of a checkpoint, every `Checkpoint.every` seconds."""

    def __init__(self, stages: Stages, stage: str) -> None:
        self.stages, self.stage, self.last = stages, stage, time.monotonic()

    def load(self) -> dict[str, Tensor] | None:
        """Return the saved state, or None if there is none."""
        state = self.stages.load(self.stage)
        return None if state is None else state.tensors

    def save(self, state: Callable[[], dict[str, Tensor]]) -> None:
        """Save the state if `Checkpoint.every` seconds have passed since the last time."""
        stages = self.stages
        if stages.folder is None:
            return
        due = stages.writes and time.monotonic() - self.last >= stages.every
        if stages.space.agreed(due) if stages.space.spread else due:
            stages.save(self.stage, State(tensors=state()))
            self.last = time.monotonic()


def _unwritable(folder: Path, error: OSError | ValueError) -> OSError:
    """The error for a folder that cannot be written to."""
    number = error.errno if isinstance(error, OSError) else errno.EEXIST
    return OSError(number, f"cannot write checkpoints to {folder}: {error}; pass another folder")
