"""Checks that a module is the fitted one: the same parameters and buffers, bit for bit."""

import hashlib

import torch
from torch import Tensor, nn

Fingerprint = dict[str, list]  # per parameter or buffer: dtype, shape, sha256 of the bytes


def dtypes_of(module: nn.Module) -> dict[str, str]:
    """The dtype of each parameter and buffer."""
    return {name: str(tensor.dtype) for name, tensor in _tensors(module).items()}


def fingerprint(module: nn.Module, dtypes: dict[str, str]) -> Fingerprint:
    """The fingerprint of a module; `dtypes` are its dtypes before it was cast. Cost: one pass over the weights."""
    return {name: [dtypes[name], list(tensor.shape), _digest(tensor)] for name, tensor in _tensors(module).items()}


def check_same(module: nn.Module, expected: Fingerprint, cast: torch.dtype | None) -> None:
    """Compare a module, cast to `cast`, with a fingerprint; the error names the first difference."""
    tensors = _tensors(module)
    for name, (dtype, shape, _) in expected.items():
        if name not in tensors:
            raise ValueError(f"the module has no {name!r}, but the fitted module has; pass a module of the same architecture")
        got = tensors[name]
        if list(got.shape) != shape:
            raise ValueError(
                f"{name!r} of the module has shape {tuple(got.shape)}, but {tuple(shape)} in the fitted module; pass a module "
                "of the same architecture"
            )
        if str(got.dtype) != dtype:
            raise ValueError(
                f"{name!r} of the module is {got.dtype}, but was {dtype} in the fitted module; use module.to({dtype})"
            )
    for name in tensors:
        if name not in expected:
            raise ValueError(f"the module has {name!r}, but the fitted module does not; pass a module of the same architecture")
    for name, (*_, digest) in expected.items():
        tensor = tensors[name]
        if _digest(tensor if cast is None or not tensor.is_floating_point() else tensor.to(cast)) != digest:
            raise ValueError(
                f"{name!r} of the module has other values than in the fitted module; load the weights that were fitted"
            )


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers by name."""
    return {name: tensor.detach() for name, tensor in [*module.named_parameters(), *module.named_buffers()]}


def _digest(tensor: Tensor) -> str:
    """The sha256 of the bytes of a tensor."""
    return hashlib.sha256(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data).hexdigest()
