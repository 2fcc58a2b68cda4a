"""A look at everything the library promises not to touch."""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn


def state_of(module: nn.Module) -> dict[str, object]:
    """Parameters, buffers, gradients, flags and hooks of a module."""
    state: dict[str, object] = {}
    for name, p in [*module.named_parameters(), *module.named_buffers()]:
        state[name] = (id(p), p.detach().clone(), p.dtype, p.requires_grad, p.grad, p._version)
    for name, part in module.named_modules():
        state[f"{name} flags"] = (part.training, len(part._forward_hooks), len(part._forward_pre_hooks))
    return state


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()  # NaN is the same as itself
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def process_state() -> tuple[object, ...]:
    """Torch's random state, default dtype, gradient mode, attention switches, precision of products.

    Python's own random state is left out: the type checker draws from it. No module imports `random` (test_imports).
    """
    return (
        torch.random.get_rng_state(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.backends.mha.get_fastpath_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
    )


@contextlib.contextmanager
def unchanged(*modules: nn.Module) -> Iterator[None]:
    """Fails if the block changes the modules or the process."""
    before, process = [state_of(module) for module in modules], process_state()
    yield
    for module, old in zip(modules, before, strict=True):
        new = state_of(module)
        assert old.keys() == new.keys()
        assert [name for name in old if not same(old[name], new[name])] == []
    changed = [k for k, (a, b) in enumerate(zip(process, process_state(), strict=True)) if not same(a, b)]
    assert not changed, f"changed: {changed}"
