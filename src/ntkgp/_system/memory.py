"""How much memory is free, which decides whether factors are kept; and what to do when it runs out all the same."""

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch

T = TypeVar("T")
FULL = ("allocate memory", "bad_alloc", "STATUS_ALLOC_FAILED", "CUDA error: out of memory")  # said by plain RuntimeErrors


def free_bytes(device: torch.device) -> int:
    """Free memory of the device, in bytes; on a CPU what the system can give without swapping, and this process may take.

    Of what the system has, each of torchrun's ranks on it gets its share; of a GPU what its `per_process_memory_fraction`
    leaves.
    """
    if device.type == "cuda":
        taken, (free, total) = torch.cuda.memory_allocated(device), torch.cuda.mem_get_info(device)
        allowed = int(torch.cuda.get_per_process_memory_fraction(device) * total)
        return max(0, min(free + torch.cuda.memory_reserved(device), allowed) - taken)
    return max(0, min(_system(), _group(), _process()))


def _system() -> int:
    try:
        with open("/proc/meminfo") as lines:
            free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):  # not Linux: half of what is installed
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return free // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _group() -> int:
    """What is left to the control group of the process: containers and batch systems allow less than the machine has."""
    left = 2**63
    for limit, usage, files in _group_files():
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            stat = dict(line.split() for line in files.read_text().splitlines())
            cached = int(stat.get("inactive_file", stat.get("total_inactive_file", 0)))  # given up when asked for
            left = min(left, int(limit.read_text()) - int(usage.read_text()) + cached)
    return left


@cache
def _group_files() -> list[tuple[Path, Path, Path]]:
    """The limit, usage and statistics of the control groups the process is in, of version 2 and of version 1."""
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
        # A container may see the files of its root only.
        for folder in (own, *(parent for parent in own.parents if parent.is_relative_to(root))):
            if (folder / names[0]).is_file():
                found.append((folder / names[0], folder / names[1], folder / "memory.stat"))
    return found


def _process() -> int:
    """What ``ulimit -v`` and ``-d`` leave."""
    try:
        import resource

        sizes = [int(pages) * os.sysconf("SC_PAGE_SIZE") for pages in Path("/proc/self/statm").read_text().split()]
    except (ImportError, OSError):
        return 2**63
    limits = {resource.RLIMIT_AS: sizes[0], resource.RLIMIT_DATA: sizes[5]}
    soft = {kind: resource.getrlimit(kind)[0] for kind in limits}
    return min([2**63, *(soft[kind] - used for kind, used in limits.items() if soft[kind] != resource.RLIM_INFINITY)])


def rows_per_chunk(bytes_per_row: float, budget: float = 64 * 2**20) -> int:
    """How many rows fit a working set of `budget` bytes; at least one."""
    return max(1, int(budget // max(bytes_per_row, 1.0)))


def ran_out(error: BaseException) -> bool:
    """Whether an error says that there is no memory left; CPUs, and the libraries of a GPU, say it by a plain RuntimeError."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in FULL)


def by_halves(work: Callable[[slice], T], count: int) -> list[T]:
    """`work` on `count` rows at once; where memory runs out on half as many at a time, down to one.

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
    """Says what to do when memory has run out for good: one kind of error, on every device."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error) or "; to need less: " in str(error):
            raise
        first = (str(error) or "out of memory").splitlines()[0]
        raise torch.OutOfMemoryError(f"{first}; to need less: {advice}") from error
