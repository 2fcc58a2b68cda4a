"""A growing Cholesky factor in a file, in the parts in which it grew: a loaded factor rounds exactly as the saved one."""

import torch

from ntkgp._system.memory import roomier
from ntkgp.linalg.growing_cholesky import GrowingCholesky
from ntkgp.storage.state import State


def growing_state(cholesky: GrowingCholesky, prefix: str = "") -> State:
    """Return the base, and the rows that were appended to it."""
    left, corner = cholesky.rows
    rows = {"left": left, "corner": corner.tril(), "room": cholesky.room.size} if cholesky.count else {}
    found = {"factor": cholesky.base, **rows, "later": cholesky.count, "largest": cholesky.largest, "jitter": cholesky.jitter}
    return State.of(**{prefix + name: value for name, value in found.items()})


def restore_growing(state: State, size: int, dtype: torch.dtype, prefix: str = "") -> GrowingCholesky:
    """Rebuild a factor of `size` rows."""
    later = state.fact(f"{prefix}later", int)
    state.sizes.update(L=later, B=size - later)
    base = state.tensor(f"{prefix}factor", "B B", dtype)
    found = GrowingCholesky.whole(base, state.fact(f"{prefix}largest", float), state.fact(f"{prefix}jitter", float))
    if not later:
        return found
    left, corner = state.tensor(f"{prefix}left", "L B", dtype), state.tensor(f"{prefix}corner", "L L", dtype)
    room = state.fact(f"{prefix}room", int)
    if not later <= room <= roomier(later):
        raise ValueError(f"'{prefix}room' must be from {later} to {roomier(later)} rows, got {room}")
    return found.with_rows(left, corner, room)
