"""Checks of the user's data. Each error says what was expected, what was passed, and what to do."""

from numbers import Real

import torch
from torch import Tensor, nn

from ntkgp._system.check_options import as_double


def check_inputs(x: Tensor, module: nn.Module, name: str = "x") -> None:
    """Check the points: a non-empty, finite tensor on the module's device; floating unless the module has embeddings."""
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
    """Check the targets: finite, floating, shape (N,) or (N, C) with the N of x and the C of the network."""
    _check_one_target_per_point(y, x)
    if (y.shape[1] if y.ndim == 2 else 1) != outputs:
        raise ValueError(
            f"the network has {outputs} output(s) but y has shape {tuple(y.shape)}; expected ({len(x)}, {outputs})"
        )
    if y.device != x.device:
        raise ValueError(f"y is on {y.device} but x is on {x.device}; move one with .to(...)")
    if not bool(torch.isfinite(y).all()):
        raise ValueError(f"y holds NaN or infinity in row {_first_bad_row(y)}; remove or impute such rows")


def check_pair(x: Tensor, y: Tensor, where: str = "") -> None:
    """Check points and targets without a network: both dense, y floating, one target per point."""
    _check_dense(x, "x")
    if x.ndim < 1 or len(x) == 0:
        raise ValueError(f"x must hold at least one point along its first axis, got shape {tuple(x.shape)}{where}")
    _check_one_target_per_point(y, x, where)


def _check_one_target_per_point(y: Tensor, x: Tensor, where: str = "") -> None:
    """Check that y has one row per point. Both may be empty: a rank of a group may hold no points."""
    _check_dense(y, "y")
    if not y.is_floating_point():
        raise TypeError(f"y must be real floating point, got {y.dtype}{where}; use y.float() or y.double()")
    if y.ndim not in (1, 2) or len(y) != len(x):
        raise ValueError(f"y must have shape ({len(x)},) or ({len(x)}, C) to match x, got {tuple(y.shape)}{where}")


def check_table(x: Tensor, y: Tensor) -> None:
    """Check a table: points as rows of features, (N, D), and one target per point."""
    check_pair(x, y)
    if x.ndim != 2 or not x.is_floating_point():
        raise ValueError(f"x must be a floating tensor of shape (N, D), got {tuple(x.shape)} of {x.dtype}")
    if y.device != x.device:
        raise ValueError(f"y is on {y.device} but x is on {x.device}; move one with .to(...)")


def check_sizes(residual: Tensor, noise_std: Tensor) -> None:
    """Check that the squares of residual / noise_std do not overflow in the dtype of the computation."""
    most = torch.finfo(residual.dtype).max ** 0.5
    if not bool(((noise_std > 0) & torch.isfinite(noise_std)).all()):
        raise ValueError(
            f"noise_var is too small or too large for {residual.dtype}, the dtype of the computation; rescale y and noise_var, "
            "or use module.double() or method=ntkgp.Exact()"
        )
    if not bool(((residual / noise_std).abs() < most).all()):
        raise ValueError(
            f"y minus the prior mean is as large as {float(residual.abs().max()):.1e} and noise_var as small as "
            f"{float(noise_std.min()) ** 2:.1e}: squares of y / noise_std overflow in {residual.dtype}; rescale y and "
            "noise_var, or raise noise_var"
        )


def check_prior(variance: Tensor, noise_std: Tensor, outputs: int) -> None:
    """Check that the prior variances are finite and that the square of their sum over the noise does not overflow."""
    check_finite(variance, outputs, f"the prior variance of the network (in {noise_std.dtype})")
    ratio = float((variance.double() / noise_std.double().square()).sum())
    if not ratio < torch.finfo(noise_std.dtype).max ** 0.5:
        raise ValueError(
            f"the prior variance, summed over the points, is {ratio:.1e} times noise_var, which is too large for "
            f"{noise_std.dtype}; lower prior_var, raise noise_var, rescale x or the weights, or compute in float64"
        )


def check_finite(values: Tensor, outputs: int, what: str, name: str = "x") -> None:
    """Check that values are finite. They have one row per output and point; the error names the worst point."""
    finite = torch.isfinite(values.detach())
    if not bool(finite.all()):
        row = int((~finite).reshape(len(values), -1).sum(dim=1).argmax()) // outputs  # the row with the most bad entries
        raise ValueError(
            f"{what} is not finite at row {row} of {name}: the network, its derivative or a product with them is NaN or "
            f"overflows there; rescale {name} (and y), or remove the row"
        )


SMALLEST_SPREAD = 1e-145  # of targets: below it, the variances of predictions are no normal numbers


def check_scalable(values: Tensor, scale: Tensor) -> None:
    """Check that the squares of each column do not overflow, so that its standard deviation is finite."""
    if not bool(torch.isfinite(scale).all()):
        column = int((~torch.isfinite(scale.reshape(-1))).nonzero()[0])
        most = float(values.reshape(len(values), -1)[:, column].abs().max())
        raise ValueError(f"column {column} holds values as large as {most:.1e}, and their squares overflow; rescale the column")


def check_spread(scale: Tensor) -> None:
    """Check that the squares of the standard deviations of targets do not underflow, so that predictions have variances."""
    if bool((scale < SMALLEST_SPREAD).any()):
        raise ValueError(f"the targets have a std of {float(scale.min()):.1e}, and its square underflows; rescale them")


def _check_dense(t: Tensor, name: str) -> None:
    if not isinstance(t, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(t).__name__}; use torch.as_tensor({name})")
    if t.layout != torch.strided or t.is_quantized or t.is_nested:
        raise TypeError(f"{name} must be a dense tensor, got one of layout {t.layout}; use {name}.to_dense()")


def check_noise(noise_var: float | Tensor, shape: tuple[int, ...], name: str = "noise_var") -> Tensor:
    """Return the noise variance as (N, C) in float64, from a number or a tensor of shape (N,), (1, C) or (N, C)."""
    if isinstance(noise_var, bool) or not isinstance(noise_var, Real | Tensor):
        raise TypeError(f"{name} must be a number or a torch.Tensor, got {type(noise_var).__name__}")
    # A Python number becomes float64, whatever torch's default dtype; one too large for float64 becomes infinity.
    noise = noise_var.detach() if isinstance(noise_var, Tensor) else torch.tensor(as_double(noise_var), dtype=torch.float64)
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


def _first_bad_row(t: Tensor) -> int:
    bad = ~torch.isfinite(t.detach()).flatten(1).all(dim=1) if t.ndim > 1 else ~torch.isfinite(t.detach())
    return int(bad.nonzero()[0])
