"""Free memory, which decides whether factors are stored; and recovery when memory runs out."""

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch

T = TypeVar("T")
# Texts of the plain RuntimeErrors that report a failed allocation.
OUT_OF_MEMORY_TEXTS = ("allocate memory", "bad_alloc", "STATUS_ALLOC_FAILED", "CUDA error: out of memory")


def free_bytes(device: torch.device) -> int:
    """Return the free memory of the device in bytes; on a CPU, what this process can allocate without swapping.

    Ranks that torchrun starts on one machine share its memory equally. On a GPU `per_process_memory_fraction` is respected.
    """
    if device.type == "cuda":
        taken, (free, total) = torch.cuda.memory_allocated(device), torch.cuda.mem_get_info(device)
        allowed = int(torch.cuda.get_per_process_memory_fraction(device) * total)
        return max(0, min(free + torch.cuda.memory_reserved(device), allowed) - taken)
    return max(0, min(_system(), _group(), _process()))


def _system() -> int:
    """Return the available memory of the machine in bytes, divided by the number of local ranks."""
    try:
        with open("/proc/meminfo") as lines:
            free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):  # not Linux: half of the installed memory
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return free // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _group() -> int:
    """Return the bytes left in the process's control group; containers and batch systems set such limits."""
    left = 2**63
    for limit, usage, files in _group_files():
        with contextlib.suppress(OSError, ValueError):  # "max" (no limit) is not a number
            stat = dict(line.split() for line in files.read_text().splitlines())
            cached = int(stat.get("inactive_file", stat.get("total_inactive_file", 0)))  # the kernel frees this on demand
            left = min(left, int(limit.read_text()) - int(usage.read_text()) + cached)
    return left


@cache
def _group_files() -> list[tuple[Path, Path, Path]]:
    """Return the files (limit, usage, statistics) of the process's control groups, version 2 and version 1."""
    try:
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return []
    found = []
    for _, controllers, path in lines:
        version_2 = controllers == ""
        if not version_2 and "memory" not in controllers.split(","):
            continue
        root = Path("/sys/fs/cgroup") if version_2 else Path("/sys/fs/cgroup/memory")
        names = ("memory.max", "memory.current") if version_2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        own = root / path.lstrip("/")
        # A container may see only the files of its root group.
        for folder in (own, *(parent for parent in own.parents if parent.is_relative_to(root))):
            if (folder / names[0]).is_file():
                found.append((folder / names[0], folder / names[1], folder / "memory.stat"))
    return found


def _process() -> int:
    """Return the bytes left under ``ulimit -v`` and ``ulimit -d``."""
    try:
        import resource

        sizes = [int(pages) * os.sysconf("SC_PAGE_SIZE") for pages in Path("/proc/self/statm").read_text().split()]
    except (ImportError, OSError):
        return 2**63
    limits = {resource.RLIMIT_AS: sizes[0], resource.RLIMIT_DATA: sizes[5]}
    soft = {kind: resource.getrlimit(kind)[0] for kind in limits}
    return min([2**63, *(soft[kind] - used for kind, used in limits.items() if soft[kind] != resource.RLIM_INFINITY)])


def rows_per_chunk(bytes_per_row: float, budget: float = 64 * 2**20) -> int:
    """Return how many rows fit a working set of `budget` bytes; at least one."""
    return max(1, int(budget // max(bytes_per_row, 1.0)))


def ran_out(error: BaseException) -> bool:
    """Return whether an error means out of memory; CPUs and some GPU libraries raise a plain RuntimeError."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY_TEXTS)


def by_halves(work: Callable[[slice], T], count: int) -> list[T]:
    """Call `work` on all `count` rows at once; each time memory runs out, halve the rows per call, down to one.

    Example:
        >>> def three_at_most(rows: slice) -> int:
        ...     if rows.stop - rows.start > 3:
        ...         raise MemoryError
        ...     return rows.stop - rows.start
        >>> by_halves(three_at_most, 10)
        [3, 3, 3, 1]
    """
    parts, start, size = [], 0, count
    while start < count:
        rows = slice(start, min(start + size, count))
        try:
            parts.append(work(rows))
        except (RuntimeError, MemoryError) as error:
            if not ran_out(error) or rows.stop - rows.start == 1:
                raise
            size = (rows.stop - rows.start + 1) // 2
        else:
            start = rows.stop
    return parts


@contextlib.contextmanager
def out_of_memory(advice: str) -> Iterator[None]:
    """Turn any out-of-memory error of the block into one type on every device, with advice on how to use less."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error) or "; to use less: " in str(error):
            raise
        first = (str(error) or "out of memory").splitlines()[0]
        raise torch.OutOfMemoryError(f"{first}; to use less: {advice}") from error


class Room:
    """Decides who may append to a shared buffer of `size` rows. A holder of n rows reads only the first n.

    Among the holders of the first n rows, only the first to ask may append to the buffer; any other starts a branch and must
    copy. So no row is ever written twice, and the holders need no other coordination.

    Example:
        >>> room = Room(4)
        >>> room.claim(2, 1), room.claim(2, 1), room.claim(3, 1), room.claim(4, 1)  # granted, a branch, granted, full
        (True, False, True, False)
    """

    def __init__(self, size: int):
        self.size = size
        self._claims: dict[int, object] = {}

    def claim(self, start: int, count: int) -> bool:
        """Return whether the holder of the first `start` rows may append `count` rows."""
        mine = object()
        # setdefault is atomic: when two threads ask at once, only one gets the claim.
        return start + count <= self.size and self._claims.setdefault(start, mine) is mine


def roomier(rows: int) -> int:
    """Return the number of rows to allocate when `rows` are needed; doubling makes copies rare."""
    return max(16, 2 * rows)
