"""What a method predicts, and its scores: negative log-likelihood, RMSE, CRPS and coverage, in raw units of the target.

The CRPS and the coverage are those of the Gaussian with the predicted mean and std. The NLL is too, unless a method brings a
density of its own (a mixture, where that is what its authors report).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

NAMES = ("nll", "rmse", "crps", "coverage")


@dataclass(frozen=True)
class Forecast:
    """A predictive distribution for each test input, in raw units of the target.

    Args:
        mean: ``(T,)``.
        std: ``(T,)``, of the observation: noise included.
        log_density: maps targets ``(T,)`` to their log density ``(T,)``; None for the Gaussian with this mean and std.
        chosen: what the method chose on the training data, for the record.
        epistemic: ``(T,)``, the part of the std that more data would remove; None where a method has none.
    """

    mean: Tensor
    std: Tensor
    log_density: Callable[[Tensor], Tensor] | None = None
    chosen: dict[str, Any] = field(default_factory=dict)
    epistemic: Tensor | None = None

    def at(self, chosen: Tensor) -> "Forecast":
        """The forecast for some of the test inputs; `chosen` is a mask."""
        chosen = chosen.to(self.mean.device)
        density = self.log_density

        def some(y: Tensor) -> Tensor:
            assert density is not None
            full = y.new_zeros(len(chosen))
            full[chosen.to(y.device)] = y
            return density(full)[chosen]

        return Forecast(self.mean[chosen], self.std[chosen], None if density is None else some, self.chosen)


def gaussian_log_density(y: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """``log N(y; mean, std²)``, with its ½ log 2π."""
    return -0.5 * ((y - mean) / std).square() - std.log() - 0.5 * math.log(2 * math.pi)


def gaussian_crps(y: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """The continuous ranked probability score ``∫ (F(t) - 1[t ≥ y])² dt`` of ``N(mean, std²)``.

    ``std · (z (2Φ(z) - 1) + 2φ(z) - 1/√π)`` with ``z = (y - mean) / std`` (Gneiting & Raftery 2007, equation 21).
    """
    z = (y - mean) / std
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    return std * (z * torch.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))


def score(forecast: Forecast, y: Tensor) -> dict[str, float]:
    """The four scores, averaged over test points; coverage is the share of targets in the central 95 % interval."""
    y, mean, std = (value.detach().cpu().double() for value in (y, forecast.mean, forecast.std))
    if not y.shape == mean.shape == std.shape:
        raise ValueError(f"expected mean and std of shape {tuple(y.shape)}, got {tuple(mean.shape)} and {tuple(std.shape)}")
    if forecast.log_density is None:
        log_density = gaussian_log_density(y, mean, std)
    else:
        log_density = forecast.log_density(y).detach().cpu().double()
    return {
        "nll": -float(log_density.mean()),
        "rmse": float((y - mean).square().mean().sqrt()),
        "crps": float(gaussian_crps(y, mean, std).mean()),
        "coverage": float(((y - mean).abs() <= 1.959964 * std).double().mean()),
    }
