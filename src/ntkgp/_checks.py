"""Every check of what a user passes in: each error says what was expected, what came, and what to do."""

import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Real

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd


def check_module(module: nn.Module) -> None:
    """A module with real, trainable parameters of one dtype and device, and nothing random or batch-dependent switched on."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
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
        if not bool(torch.isfinite(p).all()):
            raise ValueError(f"parameter {name!r} holds NaN or infinity; expected finite weights")
    for what, kinds in {
        "dtype": {p.dtype for p in trainable.values()},
        "device": {p.device for p in trainable.values()},
    }.items():
        if len(kinds) > 1:
            raise ValueError(f"all parameters must share one {what}, got {sorted(map(str, kinds))}; use module.to(...)")
    for name, part in module.named_modules():
        random = isinstance(part, _DropoutNd) and part.p > 0
        if part.training and (random or isinstance(part, _BatchNorm)):
            raise ValueError(
                f"layer {name!r} ({type(part).__name__}) is in training mode, where the output is not a function of the input "
                "alone; call module.eval() first"
            )


def check_inputs(x: Tensor, module: nn.Module, name: str = "x") -> None:
    """Points: a non-empty, finite tensor on the module's device, floating unless the module looks indices up."""
    _check_dense(x, name)
    if x.ndim < 1 or len(x) == 0:
        raise ValueError(f"{name} must hold at least one point along its first axis, got shape {tuple(x.shape)}")
    looks_up = any(isinstance(part, nn.Embedding | nn.EmbeddingBag) for part in module.modules())
    if not x.is_floating_point() and not (looks_up and not x.is_complex() and x.dtype != torch.bool):
        raise TypeError(f"{name} must be real floating point, got {x.dtype}; use {name}.float() or {name}.double()")
    device = next(module.parameters()).device
    if x.device != device:
        raise ValueError(f"{name} is on {x.device} but the module is on {device}; move one with .to(...)")
    if x.is_floating_point() and not bool(torch.isfinite(x.detach()).all()):
        raise ValueError(f"{name} holds NaN or infinity in row {_first_bad_row(x)}; remove or impute such rows")


def check_targets(y: Tensor, x: Tensor, outputs: int) -> None:
    """Targets: finite, floating, (N,) or (N, C) with the N of x and the C of the network."""
    _check_goes_with(y, x)
    if (y.shape[1] if y.ndim == 2 else 1) != outputs:
        raise ValueError(
            f"the network has {outputs} output(s) but y has shape {tuple(y.shape)}; expected ({len(x)}, {outputs})"
        )
    if y.device != x.device:
        raise ValueError(f"y is on {y.device} but x is on {x.device}; move one with .to(...)")
    if not bool(torch.isfinite(y).all()):
        raise ValueError(f"y holds NaN or infinity in row {_first_bad_row(y)}; remove or impute such rows")


def check_pair(x: Tensor, y: Tensor, where: str = "") -> None:
    """Points and targets that go together, as far as can be seen without a network: floating y, as many as points."""
    _check_dense(x, "x")
    if x.ndim < 1 or len(x) == 0:
        raise ValueError(f"x must hold at least one point along its first axis, got shape {tuple(x.shape)}{where}")
    _check_goes_with(y, x, where)


def _check_goes_with(y: Tensor, x: Tensor, where: str = "") -> None:
    """Targets for these points, of which a rank of a group may have none."""
    _check_dense(y, "y")
    if not y.is_floating_point():
        raise TypeError(f"y must be real floating point, got {y.dtype}{where}; use y.float() or y.double()")
    if y.ndim not in (1, 2) or len(y) != len(x):
        raise ValueError(f"y must have shape ({len(x)},) or ({len(x)}, C) to go with x, got {tuple(y.shape)}{where}")


def check_table(x: Tensor, y: Tensor) -> None:
    """Points as rows of features, (N, D), and targets that go with them."""
    check_pair(x, y)
    if x.ndim != 2 or not x.is_floating_point():
        raise ValueError(f"x must be a floating tensor of shape (N, D), got {tuple(x.shape)} of {x.dtype}")
    if y.device != x.device:
        raise ValueError(f"y is on {y.device} but x is on {x.device}; move one with .to(...)")


def check_sizes(residual: Tensor, noise_std: Tensor) -> None:
    """Residuals whose squares, in units of the noise, fit the dtype that is computed in."""
    most = torch.finfo(residual.dtype).max ** 0.5
    if not bool(((noise_std > 0) & torch.isfinite(noise_std)).all()):
        raise ValueError(
            f"noise_var is outside of what {residual.dtype} can hold, in which is computed; rescale y and noise_var, or use a "
            "float64 network, or method=ntkgp.Exact()"
        )
    if not bool(((residual / noise_std).abs() < most).all()):
        raise ValueError(
            f"y (less the prior mean) is as large as {float(residual.abs().max()):.1e} and noise_var as small as "
            f"{float(noise_std.min()) ** 2:.1e}: squares of y over the noise overflow in {residual.dtype}; rescale y and "
            "noise_var, or raise noise_var"
        )


def check_prior(variance: Tensor, noise_std: Tensor, outputs: int) -> None:
    """Prior variances of all outputs at all points, in whose squares over the noise nothing overflows."""
    check_finite(variance, outputs, f"the prior variance of the network (in {noise_std.dtype})")
    ratio = float((variance.double() / noise_std.double().square()).sum())
    if not ratio < torch.finfo(noise_std.dtype).max ** 0.5:
        raise ValueError(
            f"the prior variance is {ratio:.1e} times noise_var, summed over the points, beyond the arithmetic of "
            f"{noise_std.dtype}; lower prior_var, raise noise_var, rescale x or the weights, or compute in float64"
        )


def check_finite(values: Tensor, outputs: int, what: str, name: str = "x") -> None:
    """Rows of values, one for each output at each point; the error says at which point they are not finite."""
    finite = torch.isfinite(values.detach())
    if not bool(finite.all()):
        row = int((~finite).reshape(len(values), -1).sum(dim=1).argmax()) // outputs  # of a matrix, the one to blame
        raise ValueError(
            f"{what} is not finite at row {row} of {name}: the network or its derivative is NaN or overflows there, or what "
            f"it is multiplied with does; rescale {name} (and y), or leave the row out"
        )


def check_scalable(values: Tensor, scale: Tensor) -> None:
    """Columns whose squares do not overflow, so that they have a standard deviation."""
    if not bool(torch.isfinite(scale).all()):
        column = int((~torch.isfinite(scale.reshape(-1))).nonzero()[0])
        most = float(values.reshape(len(values), -1)[:, column].abs().max())
        raise ValueError(f"column {column} holds values of up to {most:.1e}, whose squares overflow; rescale it")


def check_generator(generator: torch.Generator | None) -> None:
    """A generator or None."""
    if generator is not None and not isinstance(generator, torch.Generator):
        kind = type(generator).__name__
        raise TypeError(f"generator must be a torch.Generator or None, got {kind}; use torch.Generator().manual_seed(seed)")


def _check_dense(t: Tensor, name: str) -> None:
    if not isinstance(t, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(t).__name__}; use torch.as_tensor({name})")
    if t.layout != torch.strided or t.is_quantized or t.is_nested:
        raise TypeError(f"{name} must be a dense tensor, got one of layout {t.layout}; use {name}.to_dense()")


def check_noise(noise_var: float | Tensor, shape: tuple[int, ...], name: str = "noise_var") -> Tensor:
    """The noise variance as (N, C) in float64: given as a number, per point (N,), output (1, C), or both (N, C)."""
    if isinstance(noise_var, bool) or not isinstance(noise_var, Real | Tensor):
        raise TypeError(f"{name} must be a number or a torch.Tensor, got {type(noise_var).__name__}")
    # A Python number is a double, whatever torch's default dtype; one that is too large for it is infinite.
    noise = noise_var.detach() if isinstance(noise_var, Tensor) else torch.tensor(_double(noise_var), dtype=torch.float64)
    _check_dense(noise, name)
    if noise.is_complex() or noise.dtype == torch.bool:
        raise TypeError(f"{name} must be real, got {noise.dtype}")
    if noise.is_meta:
        raise ValueError(f"{name} is on the meta device and has no values; move it to the device of the module")
    noise = noise.to(torch.float64)
    N, C = shape
    if noise.ndim and tuple(noise.shape) not in {(N,), (N, C), (1, C)}:
        raise ValueError(f"{name} must be a number or have shape ({N},), ({N}, {C}) or (1, {C}), got {tuple(noise.shape)}")
    if not bool((torch.isfinite(noise) & (noise > 0)).all()):
        raise ValueError(f"{name} must be positive and finite, got {float(noise.min()):.4g} to {float(noise.max()):.4g}")
    return (noise.unsqueeze(-1) if noise.ndim == 1 else noise).expand(N, C)


def check_outputs(call: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor) -> int:
    """The number of outputs C of a network that is a deterministic function of each point by itself.

    Calls the network on the first points: twice alike, then with another neighbour. `module` is the copy that `call` runs;
    its buffers must not change.
    """
    points = x[: min(len(x), 4)].detach().clone()
    buffers = {name: b.clone() for name, b in module.named_buffers()}
    devices = [x.device] if x.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.no_grad():
        out = call(points)
        if not torch.equal(points, x[: len(points)]):
            raise ValueError("the module changes its input in place; make it work on a copy (x = x + 1 rather than x += 1)")
        again = call(points)
        pair, other = call(points[[0, 0]]), call(points[[0, -1]])
    if not isinstance(out, Tensor):
        raise TypeError(f"the module must return one tensor, got {type(out).__name__}; wrap it to return the regression output")
    if out.ndim not in (1, 2) or len(out) != len(points):
        raise ValueError(
            f"the module must return shape (N,) or (N, C), got {tuple(out.shape)} for {len(points)} points; "
            "flatten or pool its output"
        )
    if not out.is_floating_point():
        raise TypeError(f"the module must return real floating point numbers, got {out.dtype}")
    if not bool(torch.isfinite(out).all()):
        raise ValueError("the module returns NaN or infinity on the first points of x; check its weights and the scale of x")
    changed = [name for name, b in module.named_buffers() if not torch.equal(b, buffers[name])]
    if changed:
        raise ValueError(f"buffer {changed[0]!r} changes when the module is called; call module.eval() or freeze it")
    if not torch.equal(out, again):
        raise ValueError("the module is stochastic (two calls on the same points differ); call module.eval() or fix its noise")
    if (pair[0] - other[0]).abs().max() > 1e-3 * (1 + pair[0].abs().max()):
        raise ValueError(
            "the output at a point depends on the other points of the batch (as with batch normalisation in training mode); "
            "call module.eval()"
        )
    return 1 if out.ndim == 1 else out.shape[1]


def prior_scales(prior_var: float | Mapping[str, float], names: list[str]) -> dict[str, float]:
    """The prior standard deviation of each parameter from one variance, or from a mapping of module names to variances."""
    if prior_var is None:
        raise TypeError("prior_var must be a number or a mapping from module names to numbers, got None")
    if not isinstance(prior_var, Mapping):
        return dict.fromkeys(names, _positive_root(prior_var, "prior_var"))
    scales = {}
    for name in names:
        owners = [key for key in prior_var if key == "" or name == key or name.startswith(key + ".")]
        if not owners:
            raise ValueError(f"prior_var names no module that owns parameter {name!r}; got keys {sorted(prior_var)}")
        key = max(owners, key=len)
        scales[name] = _positive_root(prior_var[key], f"prior_var[{key!r}]")
    unused = [key for key in prior_var if not any(key == "" or n == key or n.startswith(key + ".") for n in names)]
    if unused:
        raise ValueError(f"prior_var names {unused[0]!r}, which owns no trainable parameter; parameters are {names}")
    return scales


def chosen_parameters(module: nn.Module, paths: Iterable[str]) -> set[str]:
    """Names of the trainable parameters inside the modules (or of the parameters) named by `paths`."""
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


def check_count(value: int, name: str, least: int) -> None:
    """A whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_positive(owner: str, **options: float | None) -> None:
    """Options that must be positive and finite where they are given."""
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, Real | None):
            raise TypeError(f"{name} of {owner} must be a number, got {value!r}")
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} of {owner} must be positive and finite, got {value!r}")


def check_rank(rank: int, rows: int, parameters: int) -> None:
    """1 ≤ rank ≤ min(N·C, P)."""
    check_count(rank, "rank", 1)
    if rank > min(rows, parameters):
        raise ValueError(f"rank must be at most min(N·C, P) = min({rows}, {parameters}), got {rank}; lower it")


def _positive_root(value: float, name: str) -> float:
    single = value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, Real) and not isinstance(value, bool)
    if not single:
        raise TypeError(f"{name} must be a number or a mapping from module names to numbers, got {value!r}")
    number = _double(value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name} must be positive and finite, got {number:.4g}")
    return math.sqrt(number)


def _double(number: float | Tensor) -> float:
    try:
        return float(number)
    except OverflowError:  # a whole number with more digits than a double has room for
        return math.inf if number > 0 else -math.inf


def _first_bad_row(t: Tensor) -> int:
    bad = ~torch.isfinite(t.detach()).flatten(1).all(dim=1) if t.ndim > 1 else ~torch.isfinite(t.detach())
    return int(bad.nonzero()[0])
