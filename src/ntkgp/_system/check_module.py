"""Checks of the user's module and parameter names. Each error says what was expected, what was passed, and what to do."""

import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Real

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ntkgp._system.check_options import as_double


def check_module(module: nn.Module) -> None:
    """Check the module: real, trainable parameters of one dtype and device; no dropout or batch norm in training mode."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise TypeError(f"module must be the network itself, got {type(module).__name__} around it; pass module.module")
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        raise TypeError(
            "module must be a Python module, got TorchScript, which can be neither copied nor differentiated per point; pass "
            "the module from which it was made"
        )
    trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not trainable:
        raise ValueError(
            "module has no trainable parameters, so its tangent kernel is zero; expected at least one parameter with "
            "requires_grad=True (call module.requires_grad_(True) if they were frozen on purpose)"
        )
    for name, p in trainable.items():
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise ValueError(f"parameter {name!r} is not initialised yet; call the module once on a batch first")
        if p.is_meta:
            raise ValueError(f"parameter {name!r} is on the meta device and has no values; load the module's weights first")
        if not p.is_floating_point():
            raise TypeError(f"parameter {name!r} must be real floating point, got {p.dtype}")
        if not bool(torch.isfinite(p.detach()).all()):
            raise ValueError(f"parameter {name!r} holds NaN or infinity; expected finite weights")
    for what, kinds in {
        "dtype": {p.dtype for p in trainable.values()},
        "device": {p.device for p in trainable.values()},
    }.items():
        if len(kinds) > 1:
            raise ValueError(f"all parameters must share one {what}, got {sorted(map(str, kinds))}; use module.to(...)")
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.scale_grad_by_freq:
            raise ValueError(
                f"layer {name!r} has scale_grad_by_freq=True, so that derivatives at a point depend on the other points of the "
                "batch; set it to False"
            )
        random = isinstance(part, _DropoutNd) and part.p > 0
        if part.training and (random or isinstance(part, _BatchNorm)):
            raise ValueError(
                f"layer {name!r} ({type(part).__name__}) is in training mode, where the output is not a function of the input "
                "alone; call module.eval() first"
            )


def check_outputs(call: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor) -> int:
    """Return the number of outputs C; check that the network is a deterministic function of each point separately.

    Calls the network twice on the first points, then on them in reverse order, on half of them, and on three of them alone.
    `module` is the copy that `call` runs; its buffers must not change.
    """
    points = x[:16].detach().clone()
    buffers = {name: b.clone() for name, b in module.named_buffers()}
    devices = [x.device] if x.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.no_grad():
        out = call(points)
        if not torch.equal(points, x[: len(points)]):
            raise ValueError("the module changes its input in place; make it work on a copy (x = x + 1 rather than x += 1)")
        again = call(points)
        places = torch.arange(len(points), device=x.device)
        alone = [places[k : k + 1].repeat(2) for k in sorted({0, len(points) // 2, len(points) - 1})]
        orders = [places.flip(0), places[: (len(points) + 1) // 2], *alone]
        others = [call(points[order]) for order in orders]
    if not isinstance(out, Tensor):
        raise TypeError(f"the module must return one tensor, got {type(out).__name__}; wrap it to return the regression output")
    if out.ndim not in (1, 2) or len(out) != len(points):
        raise ValueError(
            f"the module must return shape (N,) or (N, C), got {tuple(out.shape)} for {len(points)} points; "
            "flatten or pool its output"
        )
    if out.numel() == 0:
        raise ValueError(f"the module must return at least one output per point, got shape {tuple(out.shape)}")
    if not out.is_floating_point():
        raise TypeError(f"the module must return real floating point numbers, got {out.dtype}")
    if not bool(torch.isfinite(out).all()):
        row = int((~torch.isfinite(out.reshape(len(out), -1))).any(dim=1).nonzero()[0])
        raise ValueError(f"the module returns NaN or infinity in row {row} of x; check its weights and the scale of x")
    changed = [name for name, b in module.named_buffers() if not torch.equal(b, buffers[name])]
    if changed:
        raise ValueError(f"buffer {changed[0]!r} changes when the module is called; call module.eval() or freeze it")
    if not torch.equal(out, again):
        raise ValueError("the module is stochastic (two calls on the same points differ); call module.eval() or fix its noise")
    for order, other in zip(orders, others, strict=True):
        check_points_apart(out[order], other, len(points))
    return 1 if out.ndim == 1 else out.shape[1]


def check_points_apart(
    output: Tensor, other: Tensor, size: int, scale: Tensor | float | None = None, few: int | None = None
) -> None:
    """Raise if values in a batch of `size` points differ from those of the same points in `other`, a batch of these alone.

    Differences count relative to `scale`: None takes that of the outputs, or 1 if it is smaller. `few` are the points of
    `other` if its rows are not points. Values that overflow in both are left to the checks for finite values.
    """
    other = other.reshape(output.shape)  # some modules squeeze the axis of a single point
    scale = 1 + output.abs().max() if scale is None else scale
    overflows = not bool(torch.isfinite(output).all() or torch.isfinite(other).all())
    if not overflows and not bool((output - other).abs().max() <= 1e-3 * scale):
        raise ValueError(
            f"the output at a point depends on the other points of the batch: it differs between batches of {size} and "
            f"{few or len(other)} points (as with batch normalisation in training mode); call module.eval(), or make the "
            "module treat each point separately"
        )


def prior_scales(prior_var: float | Mapping[str, float], names: list[str]) -> dict[str, float]:
    """Return the prior standard deviation of each parameter, from one variance or from {module name: variance}."""
    if prior_var is None:
        raise TypeError("prior_var must be a number or a mapping from module names to numbers, got None")
    if not isinstance(prior_var, Mapping):
        return dict.fromkeys(names, _positive_root(prior_var, "prior_var"))
    scales = {}
    for name in names:
        owners = [key for key in prior_var if key == "" or name == key or name.startswith(key + ".")]
        if not owners:
            raise ValueError(
                f"prior_var names no module that owns parameter {name!r}; add one to its keys, got {sorted(prior_var)}"
            )
        key = max(owners, key=len)
        scales[name] = _positive_root(prior_var[key], f"prior_var[{key!r}]")
    unused = [key for key in prior_var if not any(key == "" or n == key or n.startswith(key + ".") for n in names)]
    if unused:
        raise ValueError(f"prior_var names {unused[0]!r}, which owns no trainable parameter; parameters are {names}")
    return scales


def chosen_parameters(module: nn.Module, paths: Iterable[str]) -> set[str]:
    """Return the names of the trainable parameters that `paths` names, directly or by the module that owns them."""
    if isinstance(paths, str) or not isinstance(paths, Iterable):
        raise TypeError(f"parameters must be a list of module names, got {paths!r}; use [{paths!r}]")
    names = [name for name, p in module.named_parameters() if p.requires_grad]
    chosen: set[str] = set()
    for path in paths:
        inside = {name for name in names if path == "" or name == path or name.startswith(path + ".")}
        if not inside:
            raise ValueError(f"parameters names {path!r}, which owns no trainable parameter; parameters are {names}")
        chosen |= inside
    if not chosen:
        raise ValueError("parameters names no module; expected at least one, or None for all")
    return chosen


def _positive_root(value: float, name: str) -> float:
    single = value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, Real) and not isinstance(value, bool)
    if not single:
        raise TypeError(f"{name} must be a number or a mapping from module names to numbers, got {value!r}")
    number = as_double(value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name} must be positive and finite, got {number:.4g}")
    return math.sqrt(number)
