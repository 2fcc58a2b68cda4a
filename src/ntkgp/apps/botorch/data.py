"""Training data of the BoTorch model: transform them, tune on them, and find their noise."""

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
    """Targets (float64) and noise variances after the transform, which learns its coefficients as in SingleTaskGP."""
    if transform is not None:
        transform.train()
        Y, noise = transform(Y, noise, X=X)
    if noise is not None and bool((noise == noise[:1]).all()):
        noise = noise[:1]  # equal for all observations, so it is known at new points too
    return Y.double(), noise


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
