"""How much memory is free: what decides whether factors are kept."""

import os

import torch


def free_bytes(device: torch.device) -> int:
    """Free memory of the device, in bytes; on a CPU what the system can give without swapping, to each of torchrun's ranks."""
    if device.type == "cuda":
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + reusable
    try:
        with open("/proc/meminfo") as lines:
            free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):  # not Linux: half of what is installed
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return free // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def rows_per_chunk(bytes_per_row: float, budget: float = 64 * 2**20) -> int:
    """How many rows fit a working set of `budget` bytes; at least one."""
    return max(1, int(budget // max(bytes_per_row, 1.0)))
