"""The folder in which a fit saves its state."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ntkgp.storage.lock import folder_in_use


@dataclass(frozen=True)
class Checkpoint:
    """A folder where ``fit`` saves its state; called again with the same arguments, it resumes from there.

    On one process the result is bit for bit the result of an uninterrupted fit (same machine and threads); with another number
    of ranks it is the same up to rounding. The folder holds the last state until you delete it. If a write fails (a full
    disk), the fit warns and continues, and the previous state stays valid. A folder serves one fit at a time; a second one
    raises OSError. A process that was killed leaves the folder free.

    Args:
        folder: created if necessary; with a group, rank 0 reads and writes (while networks are trained, every rank).
        every: seconds between two writes of an iteration's state; 0 writes after every step.

    Example:
        >>> import tempfile, torch, ntkgp
        >>> net = ntkgp.mlp(1, width=16, generator=torch.Generator().manual_seed(0))
        >>> x = torch.linspace(-1, 1, 6).unsqueeze(1)
        >>> folder = tempfile.mkdtemp()
        >>> method, checkpoint = ntkgp.LowRank(rank=3), ntkgp.storage.Checkpoint(folder, every=0)
        >>> first = ntkgp.fit(net, x, x[:, 0].sin(), noise_var=0.1, method=method, checkpoint=checkpoint)
        >>> again = ntkgp.fit(net, x, x[:, 0].sin(), noise_var=0.1, method=method, checkpoint=folder)
        >>> bool((first.predict(x).mean == again.predict(x).mean).all())
        True
    """

    folder: str | os.PathLike[str]
    every: float = 60.0
    _in_use: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (isinstance(self.folder, str | os.PathLike) and str(self.folder)):
            raise TypeError(f"checkpoint must be a folder (str or Path) or a Checkpoint, got {self.folder!r}")
        if not self.every >= 0:
            raise ValueError(f"every must be a number of seconds of at least 0, got {self.every!r}")

    @classmethod
    def of(cls, given: "Checkpoint | str | os.PathLike[str] | None") -> "Checkpoint | None":
        """Convert the user's `checkpoint` argument: a Checkpoint, a folder, or None. The result belongs to one fit."""
        return None if given is None else replace(given) if isinstance(given, Checkpoint) else cls(given)

    def reserve(self) -> None:
        """Reserve the folder for this fit, until :func:`resume_hint` ends; raise OSError if another fit uses it."""
        self._in_use.enter_context(folder_in_use(Path(self.folder), "another fit"))


@contextlib.contextmanager
def resume_hint(checkpoint: Checkpoint | None) -> Iterator[None]:
    """Tell a user who interrupts a fit how to resume it; in the end, another fit may use the folder."""
    try:
        with contextlib.nullcontext() if checkpoint is None else checkpoint._in_use:
            yield
    except KeyboardInterrupt as error:
        if checkpoint is None:
            raise
        raise KeyboardInterrupt(
            f"stopped; call fit again with checkpoint={str(checkpoint.folder)!r} to resume from there"
        ) from error
