"""Predictions with observations drawn from them, and networks that have moved."""

import copy

import torch
from torch import Tensor, nn

import ntkgp
from tests.support import oracle
from tests.support.helpers import seeded

SHAPES = [(50,), (25, 2)]


def drawn(shape: tuple[int, ...], stated: float = 1.0, shift: float = 0.0) -> tuple[ntkgp.Prediction, Tensor]:
    """Predictions of many stds and observations from them; `stated` times the true std is what the prediction claims."""
    g = seeded()
    mean, spread, noise = (torch.randn(shape, generator=g, dtype=torch.float64) for _ in range(3))
    variance, noise = spread.exp(), 0.5 * noise.exp()
    y = mean + shift + (variance + noise).sqrt() * torch.randn(shape, generator=g, dtype=torch.float64)
    variance, noise = stated**2 * variance, stated**2 * noise
    return ntkgp.Prediction(mean, variance, variance, variance, noise), y


def normal(p: ntkgp.Prediction) -> torch.distributions.Normal:
    assert p.noise_var is not None
    return torch.distributions.Normal(p.mean, (p.variance + p.noise_var).sqrt())


def moved(module: nn.Module, step: float) -> nn.Module:
    g, other = seeded(7), copy.deepcopy(module)
    with torch.no_grad():
        for p in other.parameters():
            p += step * torch.randn(p.shape, generator=g, dtype=p.dtype)
    return other


def descended(module: nn.Module, x: Tensor, y: Tensor, steps: int) -> nn.Module:
    J, trained = oracle.jacobian(module, x), copy.deepcopy(module)
    optimiser = torch.optim.SGD(trained.parameters(), lr=0.5 / float(torch.linalg.eigvalsh(J @ J.T)[-1]))
    for _ in range(steps):
        optimiser.zero_grad()
        (0.5 * (trained(x).squeeze(1) - y).square().sum()).backward()
        optimiser.step()
    return trained
