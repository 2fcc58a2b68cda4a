"""Models and networks of the tests of the BoTorch adaptor."""

import torch
from botorch.models import SingleTaskGP
from botorch.posteriors import GPyTorchPosterior
from torch import Tensor, nn

import ntkgp
from ntkgp.botorch import NTKGPModel

NOISE = 0.01


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def hill(X: Tensor) -> Tensor:
    """Highest, 0, at (0.3, 0.3, ...)."""
    return -(X - 0.3).square().sum(dim=-1, keepdim=True)


def net(inputs: int = 2, outputs: int = 1) -> nn.Module:
    g = torch.Generator().manual_seed(7)
    return ntkgp.mlp(inputs, outputs, width=24, activation=nn.Tanh(), output_scale=1.0, generator=g).double()


def fitted(
    points: int = 10, outputs: int = 1, seed: int = 0, method: ntkgp.Exact | ntkgp.LowRank | None = None
) -> ntkgp.posterior.Posterior:
    X = uniform(points, 2, seed=seed)
    Y = torch.cat([torch.sin(4 * X[:, :1] + k) * X[:, 1:] for k in range(outputs)], dim=1)
    return ntkgp.fit(net(2, outputs), X, Y, noise_var=NOISE, method=method)


def wrapped(points: int = 10, outputs: int = 1, seed: int = 0) -> NTKGPModel:
    return NTKGPModel.from_posterior(fitted(points, outputs, seed))


def built(X: Tensor | None = None, Y: Tensor | None = None, **options: object) -> NTKGPModel:
    X = uniform(12, 2) if X is None else X
    options = {"starts": 1, "steps": 10, "generator": torch.Generator().manual_seed(0), **options}
    return NTKGPModel(X, hill(X) if Y is None else Y, **options)  # pyright: ignore[reportArgumentType]


def covariance(model: NTKGPModel | SingleTaskGP, X: Tensor, **options: object) -> Tensor:
    p = model.posterior(X, **options)  # pyright: ignore[reportArgumentType]
    assert isinstance(p, GPyTorchPosterior)
    return p.distribution.covariance_matrix
