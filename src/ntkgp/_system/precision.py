"""Float32 products on a GPU's tensor cores (TF32) where that is accurate enough; never while factors are recorded."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class _Switch:
    """torch's process-wide TF32 switch: on while a thread steers a subspace and none records, else the user's setting."""

    def __init__(self):
        self.lock, self.steering, self.recording = threading.Lock(), 0, 0
        self.before: str | None = None  # the user's setting, while TF32 is on

    def count(self, steering: int = 0, recording: int = 0) -> None:
        """Change the number of threads that steer or record, and set the switch accordingly."""
        with self.lock:
            self.steering, self.recording = self.steering + steering, self.recording + recording
            if self.steering and not self.recording and self.before is None:
                try:
                    self.before = torch.get_float32_matmul_precision()
                except RuntimeError:  # the user set torch's newer switch, which excludes this one: change nothing
                    return
                torch.set_float32_matmul_precision("high")
            elif self.before is not None and (self.recording or not self.steering):
                torch.set_float32_matmul_precision(self.before)
                self.before = None


_switch = _Switch()


@contextmanager
def tensor_cores(device: torch.device) -> Iterator[None]:
    """Compute float32 products on a GPU in TF32: enough to steer a subspace, not to certify it. No effect on a CPU.

    Example:
        >>> import torch
        >>> with tensor_cores(torch.device("cpu")):
        ...     torch.get_float32_matmul_precision()
        'highest'
    """
    if device.type != "cuda":
        yield
        return
    _switch.count(steering=1)
    try:
        yield
    finally:
        _switch.count(steering=-1)


@contextmanager
def full_precision() -> Iterator[None]:
    """Restore the user's precision, even while a thread is inside :func:`tensor_cores`: the Jacobian never depends on it."""
    _switch.count(recording=1)
    try:
        yield
    finally:
        _switch.count(recording=-1)
