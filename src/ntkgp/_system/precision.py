"""Float32 products on a GPU's tensor cores (TF32), where that is enough; never while a network is looked at."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class _Switch:
    """torch's switch is the process's: on while somebody steers and nobody records, else as the user has it."""

    def __init__(self):
        self.lock, self.steering, self.recording = threading.Lock(), 0, 0
        self.before: str | None = None  # the user's setting, while it is changed

    def count(self, steering: int = 0, recording: int = 0) -> None:
        with self.lock:
            self.steering, self.recording = self.steering + steering, self.recording + recording
            if self.steering and not self.recording and self.before is None:
                try:
                    self.before = torch.get_float32_matmul_precision()
                except RuntimeError:  # set by torch's newer switches, with which this one must not be mixed: left as it is
                    return
                torch.set_float32_matmul_precision("high")
            elif self.before is not None and (self.recording or not self.steering):
                torch.set_float32_matmul_precision(self.before)
                self.before = None


_switch = _Switch()


@contextmanager
def tensor_cores(device: torch.device) -> Iterator[None]:
    """Products of float32 on a GPU in TF32: enough to steer a subspace, not to certify it. Nothing changes on a CPU.

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
    """What the user has set, also while another thread, or this one, steers: the Jacobian is the same for all."""
    _switch.count(recording=1)
    try:
        yield
    finally:
        _switch.count(recording=-1)
