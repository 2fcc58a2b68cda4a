"""Peak memory of a piece of code, and pieces of code in a process of their own.

Memory is the highest resident set above that at the start, from the kernel's own high-water mark, which is reset first. (On
Linux ``ru_maxrss`` survives ``exec``: a small child of a large parent would report its parent.) Where there is no /proc it is
the difference of ``ru_maxrss``, a lower bound.
"""

import gc
import importlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch


class Peak:
    """The most memory in use between entry and exit, above that at entry, in bytes."""

    def __init__(self, device: str = "cpu"):
        self.device, self.start, self.bytes = torch.device(device), 0, 0

    def __enter__(self) -> "Peak":
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            self.start = torch.cuda.memory_allocated()
        else:
            reset = Path("/proc/self/clear_refs")
            if reset.exists():
                reset.write_text("5")
            self.start = _resident("VmRSS")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        peak = torch.cuda.max_memory_allocated() if self.device.type == "cuda" else _resident("VmHWM")
        self.bytes = peak - self.start


def _resident(field: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def clock_of(threads: int, device: str = "cpu") -> Callable[[], float]:
    """CPU time of the process where it has one thread, which other processes do not disturb; else wall-clock time."""
    return time.process_time if threads == 1 and device == "cpu" else time.perf_counter


def isolated(target: str, arguments: dict[str, Any], timeout: float = 900, eager_release: bool = False) -> dict[str, Any]:
    """What ``module:function`` returns for the arguments, called in a fresh process; ``{"failed": why}`` if it does not.

    Args:
        target: ``module:function``; it takes and returns what JSON can carry.
        arguments: its keyword arguments.
        timeout: seconds.
        eager_release: let the C library give freed blocks of 64 kB and more back at once, so that the resident set is what is
            in use. It slows the code down: for memory, not for time.
    """
    command = [sys.executable, "-m", "benchmarks.measure", target, json.dumps(arguments)]
    environment = {**os.environ, **({"MALLOC_MMAP_THRESHOLD_": "65536"} if eager_release else {})}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"more than {timeout:.0f} s"}
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return {"failed": last[:200]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    module, function = sys.argv[1].split(":")
    print(json.dumps(getattr(importlib.import_module(module), function)(**json.loads(sys.argv[2]))))


if __name__ == "__main__":
    main()
