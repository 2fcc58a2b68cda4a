"""The folder in which a fit leaves its state."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Checkpoint:
    """A folder where ``fit`` keeps its state: called again with the same arguments it goes on from there.

    On one process the end is bit for bit that of a fit that was never interrupted (same machine and threads); on another number
    of ranks it is the same to rounding. The folder holds the last state until it is deleted. A write that fails (a full disk)
    is a warning, and leaves the state before it.

    Args:
        folder: made if need be; with a group, rank 0 reads and writes (and where networks are trained, every rank).
        every: seconds between two writes of an iteration's state; 0 for every step.

    Example:
        >>> import tempfile, torch, ntkgp
        >>> net = ntkgp.mlp(1, width=16, generator=torch.Generator().manual_seed(0))
        >>> x = torch.linspace(-1, 1, 6).unsqueeze(1)
        >>> folder = tempfile.mkdtemp()
        >>> method, keep = ntkgp.LowRank(rank=3), ntkgp.storage.Checkpoint(folder, every=0)
        >>> first = ntkgp.fit(net, x, x[:, 0].sin(), noise_var=0.1, method=method, checkpoint=keep)
        >>> again = ntkgp.fit(net, x, x[:, 0].sin(), noise_var=0.1, method=method, checkpoint=folder)
        >>> bool((first.predict(x).mean == again.predict(x).mean).all())
        True
    """

    folder: str | os.PathLike[str]
    every: float = 60.0

    def __post_init__(self) -> None:
        if not (isinstance(self.folder, str | os.PathLike) and str(self.folder)):
            raise TypeError(f"checkpoint must be a folder, got {self.folder!r}")
        if not self.every >= 0:
            raise ValueError(f"every must be a number of seconds, at least 0, got {self.every!r}")

    @classmethod
    def of(cls, given: "Checkpoint | str | os.PathLike[str] | None") -> "Checkpoint | None":
        """What a user passes as checkpoint: one of these, a folder, or None."""
        return given if given is None or isinstance(given, Checkpoint) else cls(given)


@contextlib.contextmanager
def resume_hint(checkpoint: Checkpoint | None) -> Iterator[None]:
    """Tell a user who interrupts a fit how to resume it."""
    try:
        yield
    except KeyboardInterrupt as error:
        if checkpoint is None:
            raise
        raise KeyboardInterrupt(
            f"stopped; call fit again with checkpoint={str(checkpoint.folder)!r} to resume from there"
        ) from error
