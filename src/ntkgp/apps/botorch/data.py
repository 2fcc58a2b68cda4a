"""Training data of the BoTorch model: check them, transform them, tune on them, and find their noise."""

import warnings
from dataclasses import replace
from typing import Any

import torch
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils import validate_input_scaling
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp._system.check_data import check_noise
from ntkgp._system.errors import NumericalWarning
from ntkgp.networks.unit_cube import default_network
from ntkgp.posterior.interface import Posterior
from ntkgp.tuning.result import Tuned
from ntkgp.tuning.tune import tune


def check_training_data(train_X: Tensor, train_Y: Tensor) -> None:
    """Check the shapes (n, d) and (n, m), the types and that all values are finite."""
    for name, value in {"train_X": train_X, "train_Y": train_Y}.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}; use torch.as_tensor({name})")
    if train_X.ndim != 2 or train_Y.ndim != 2 or len(train_X) != len(train_Y):
        raise ValueError(
            f"train_X must have shape (n, d) and train_Y (n, m), got {tuple(train_X.shape)} and {tuple(train_Y.shape)}; "
            "pass a single output as a column, train_Y.unsqueeze(-1); batches of models are not supported"
        )
    if not len(train_X):
        raise ValueError("train_X must hold at least one point, got none")
    for name, value in {"train_X": train_X, "train_Y": train_Y}.items():
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"{name} holds NaN or infinity; remove or impute these rows")


def known_noise(noise_var: str | float | Tensor, Y: Tensor) -> Float[Tensor, "n m"] | None:
    """The noise variance of each observation; None if it should be tuned."""
    if isinstance(noise_var, str):
        if noise_var != "tuned":
            raise ValueError(f"noise_var must be 'tuned', a number or a tensor like train_Y, got {noise_var!r}")
        return None
    return check_noise(noise_var, (len(Y), Y.shape[1])).to(Y)


def mean_noise(posterior: Posterior) -> Float[Tensor, "1 C"]:
    """The noise variance of each output, averaged over the training data."""
    data = posterior.problem.data
    return data.noise_std.square().unflatten(0, (-1, data.outputs)).mean(dim=0, keepdim=True)


def transformed_targets(
    transform: OutcomeTransform | None, X: Tensor, Y: Tensor, noise: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Targets and noise variances after the transform, which learns its coefficients from them as in SingleTaskGP."""
    if transform is not None:
        transform.train()
        Y, noise = transform(Y, noise, X=X)
    if noise is not None and bool((noise == noise[:1]).all()):
        noise = noise[:1]  # equal for all observations, so it is known at new points too
    return Y, noise


def tuned_for(
    module: nn.Module | Tuned | None,
    X: Tensor,
    Y: Tensor,
    noise: Tensor | None,
    generator: torch.Generator | None,
    **settings: Any,
) -> Tuned:
    """Hyper-parameters for these data: the given ones, or tuned ones of the given or the default network.

    Noiseless functions drive the noise variance to the edge of its range; `notes` of the result says so, without a warning.
    """
    if isinstance(module, Tuned):
        return module if noise is None else replace(module, noise_var=noise)
    if module is None:
        validate_input_scaling(train_X=X, train_Y=Y)  # warns if the data are outside the unit cube
        module = default_network(X.shape[1], Y.shape[1], generator=generator).to(X)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* edge of its range", category=NumericalWarning)
        return tune(module, X, Y, noise_var="outputs" if noise is None else noise, **settings)


def check_observations(X: Tensor, Y: Tensor, inputs: int, outputs: int) -> None:
    """Check the shapes of new observations: (..., n, d) and (..., n, m)."""
    if X.ndim < 2 or Y.ndim < 2 or X.shape[-2] != Y.shape[-2] or Y.shape[-1] != outputs:
        raise ValueError(
            f"X must have shape (..., n, {inputs}) and Y (..., n, {outputs}), got {tuple(X.shape)} and {tuple(Y.shape)}"
        )
