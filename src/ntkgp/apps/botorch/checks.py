"""Checks of what is passed to the BoTorch model. Each error says what was expected, what was passed, and what to do."""

import operator
from typing import Any

import torch
from botorch.posteriors import GPyTorchPosterior
from torch import Tensor

from ntkgp.problem.problem import Problem


def check_training_data(train_X: Tensor, train_Y: Tensor) -> None:
    """Check the shapes (n, d) and (n, m), the types, that all values are finite, and that variances of train_Y are too."""
    for name, value in {"train_X": train_X, "train_Y": train_Y}.items():
        _check_tensor(value, name)
        _check_floating(value, name)
    shapes = f"got {tuple(train_X.shape)} and {tuple(train_Y.shape)}"
    if train_X.ndim != 2 or train_Y.ndim != 2 or len(train_X) != len(train_Y):
        raise ValueError(
            f"train_X must have shape (n, d) and train_Y (n, m), {shapes}; pass a single output as a column, "
            "train_Y.unsqueeze(-1); batches of models are not supported"
        )
    if not train_X.numel() or not train_Y.numel():
        raise ValueError(f"train_X must have shape (n, d) and train_Y (n, m), with n, d and m at least one, {shapes}")
    if train_X.device != train_Y.device:
        raise ValueError(f"train_X is on {train_X.device} but train_Y is on {train_Y.device}; move one with .to(...)")
    for name, value in {"train_X": train_X, "train_Y": train_Y}.items():
        _check_finite(value, name)
    if not bool(torch.isfinite(train_Y.detach().var(dim=0, correction=0)).all()):
        most = float(train_Y.abs().max())
        raise ValueError(
            f"train_Y holds values as large as {most:.1e}, and their squares overflow in {train_Y.dtype}; rescale train_Y"
        )


def check_points(X: Tensor) -> None:
    """Check points before their transform: a tensor of shape (*batch, q, d)."""
    _check_tensor(X, "X")
    if X.ndim < 2:
        raise ValueError(f"X must have shape (..., q, d), got {tuple(X.shape)}; pass a single point as X.unsqueeze(0)")


def checked_query(model: Any, X: Tensor) -> Tensor:
    """Return the points of a query after the transform of the model; raise if their kind, width or batches are wrong."""
    check_points(X)
    X = model.transform_inputs(X)
    _check_width(X, model.gp.problem)
    _check_floating(X, "X")
    if not X.numel():
        raise ValueError(f"X must hold at least one point, got shape {tuple(X.shape)}; expected (..., q, d) with q at least 1")
    check_batches(X=X.shape[:-2], fantasies=model.batch_shape)
    return X


def check_answer(answer: Any) -> None:
    """Check that the means and variances of a Gaussian posterior are finite; a posterior of another kind has only samples."""
    if not isinstance(answer, GPyTorchPosterior):
        return
    normal = answer.distribution
    if not all(bool(torch.isfinite(part.detach()).all()) for part in (normal.loc, normal.lazy_covariance_matrix.diagonal())):
        raise ValueError(
            f"the mean or variance of the posterior at X is NaN or overflows in {normal.loc.dtype}; rescale train_Y (and Y, if "
            "the model was conditioned), use X.double(), or move X closer to train_X"
        )


def check_observations(X: Tensor, Y: Tensor, inputs: int, outputs: int) -> None:
    """Check new observations before their transform: finite tensors of shape (..., n, d) and (..., n, m)."""
    for name, value in {"X": X, "Y": Y}.items():
        _check_tensor(value, name)
        _check_finite(value, name)
    if X.ndim < 2 or Y.ndim < 2 or X.shape[-2] != Y.shape[-2] or Y.shape[-1] != outputs:
        raise ValueError(
            f"X must have shape (..., n, {inputs}) and Y (..., n, {outputs}), got {tuple(X.shape)} and {tuple(Y.shape)}"
        )


def checked_noise(X: Tensor, Y: Tensor, noise: Tensor, model: Any) -> Tensor:
    """Return the noise of new observations in the dtype of Y; raise if it, the width or the batches of X and Y are wrong."""
    _check_width(X, model.gp.problem)
    _check_tensor(noise, "noise")
    n, m = Y.shape[-2:]
    if not all(given in (1, size) for given, size in zip(noise.shape[::-1], (m, n), strict=False)):
        raise ValueError(f"noise must broadcast to (..., {n}, {m}), one per observation, got {tuple(noise.shape)}")
    if not bool((torch.isfinite(noise.detach()) & (noise.detach() > 0)).all()):
        raise ValueError(f"noise must be positive and finite, got {float(noise.min()):.4g} to {float(noise.max()):.4g}")
    check_batches(X=X.shape[:-2], Y=Y.shape[:-2], noise=noise.shape[:-2], fantasies=model.batch_shape)
    return noise.to(Y)


def check_batches(**shapes: torch.Size) -> None:
    """Raise if the named batch shapes do not broadcast."""
    try:
        torch.broadcast_shapes(*shapes.values())
    except RuntimeError as error:
        got = ", ".join(f"{tuple(shape)} of {name}" for name, shape in shapes.items())
        raise ValueError(f"batch shapes must broadcast, got {got}") from error


def observation_noise_at(given: bool | Tensor, own: Tensor, mean: Tensor) -> Tensor | None:
    """Return the noise variance to add to a posterior, in the shape of its mean: as given, or the model's own."""
    if not isinstance(given, bool | Tensor):
        raise TypeError(f"observation_noise must be True, False or a torch.Tensor, got {given!r}")
    if given is False:
        return None
    noise = own if given is True else given
    if not bool((torch.isfinite(noise.detach()) & (noise.detach() >= 0)).all()):
        raise ValueError(f"observation_noise must be non-negative and finite, got a smallest value of {float(noise.min()):.4g}")
    try:
        return noise.to(mean).expand_as(mean)
    except RuntimeError as error:
        raise ValueError(
            f"observation_noise must broadcast to {tuple(mean.shape)}, got {tuple(noise.shape)}; expected (*batch, q, m)"
        ) from error


def chosen_outputs(indices: Any, outputs: int) -> list[int]:
    """Return indices of outputs as non-negative numbers; negative ones count from the end."""
    try:
        chosen = [operator.index(k) for k in indices]
    except TypeError:
        chosen = []
    if not chosen or not all(-outputs <= k < outputs for k in chosen):
        raise ValueError(
            f"the outputs to choose are {indices!r}; expected a list of at least one index from {-outputs} to {outputs - 1}"
        )
    return [k % outputs for k in chosen]


def _check_width(X: Tensor, problem: Problem) -> None:
    point = problem.answers.point_shape
    if X.shape[-1:] != point:
        raise ValueError(f"X must have shape (..., q, {', '.join(map(str, point))}) as in fit, got {tuple(X.shape)}")


def _check_tensor(value: Any, name: str) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}; use torch.as_tensor({name})")


def _check_floating(value: Tensor, name: str) -> None:
    if not value.is_floating_point():
        raise TypeError(f"{name} must be real floating point, got {value.dtype}; use {name}.double()")


def _check_finite(value: Tensor, name: str) -> None:
    if not bool(torch.isfinite(value.detach()).all()):
        raise ValueError(f"{name} holds NaN or infinity; remove or impute these rows")
