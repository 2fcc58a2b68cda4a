"""Torch's settings: those of the caller do not change what the library computes; TF32 is on only where it is accurate enough.

The first half is about torch.autocast, torch.inference_mode and torch.no_grad; the second about float32 products on a GPU's
tensor cores, which steer a subspace but never record factors.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import torch

from ntkgp._system.locks import ForkLock

P = ParamSpec("P")
T = TypeVar("T")
AUTOCAST_DEVICES = ("cpu", "cuda")


@contextlib.contextmanager
def own_settings(gradients: bool = False) -> Iterator[None]:
    """Compute without autocast and outside of inference mode; restore the caller's settings at the end.

    Whether answers are differentiable stays the caller's choice (``torch.no_grad``), unless `gradients` asks for them because
    the computation itself needs them.

    Example:
        >>> import torch
        >>> with torch.inference_mode(), own_settings():
        ...     torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        (False, False)
    """
    if torch._C._functorch.peek_interpreter_stack() is not None:  # pyright: ignore[reportAttributeAccessIssue]
        raise RuntimeError(
            "ntkgp was called inside a torch.func transform (vmap, grad, ...), or by a signal handler that interrupted one, as "
            "fits use them; call it outside, and let a signal handler only set a flag"
        )
    enabled = gradients or torch.is_grad_enabled()
    with contextlib.ExitStack() as stack:
        for device in AUTOCAST_DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.set_grad_enabled(enabled))
        yield


def in_own_settings(gradients: bool = False) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator: run a function inside :func:`own_settings`.

    Example:
        >>> import torch
        >>> @in_own_settings(gradients=True)
        ... def needs_gradients() -> bool:
        ...     return torch.is_grad_enabled()
        >>> with torch.no_grad():
        ...     needs_gradients()
        True
    """

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
            with own_settings(gradients):
                return function(*args, **kwargs)

        return wrapped

    return decorated


class _Switch:
    """torch's process-wide TF32 switch: on while a thread steers a subspace and none records, else the user's setting."""

    def __init__(self):
        self.lock, self.steering, self.recording = ForkLock(order=3), 0, 0
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


@contextlib.contextmanager
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


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Restore the user's precision, even while a thread is inside :func:`tensor_cores`: the Jacobian never depends on it."""
    _switch.count(recording=1)
    try:
        yield
    finally:
        _switch.count(recording=-1)
