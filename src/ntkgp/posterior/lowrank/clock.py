"""Measure the seconds of each stage of a fit."""

import time

import torch


class Clock:
    """Seconds between calls, by stage; on a GPU, each call first waits until the GPU is idle."""

    def __init__(self, device: torch.device):
        self.device, self.seconds, self.last = device, dict[str, float](), time.perf_counter()

    def __call__(self, stage: str) -> None:
        """End a stage and store its seconds."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        self.seconds[stage], self.last = now - self.last, now
