"""Processor time of processes: unlike time by the clock, it does not depend on what else the machine does."""

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")  # a second


def cpu_seconds(*roots: int) -> float:
    """Processor time that these processes and those they have started have used so far."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has just ended
            continue
        parents[int(folder.name)] = int(fields[1])
        used[int(folder.name)] = (int(fields[11]) + int(fields[12])) / TICKS
    return sum(seconds for pid, seconds in used.items() if _descends(pid, roots, parents))


def _descends(pid: int, roots: tuple[int, ...], parents: dict[int, int]) -> bool:
    while pid not in roots and pid in parents:
        pid = parents[pid]
    return pid in roots
