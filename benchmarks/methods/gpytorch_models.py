"""GPyTorch's Gaussian processes for many rows: exact by Cholesky or conjugate gradients, and SGPR.

An ARD squared-exponential kernel and a constant mean, float64; Adam with the learning rates of GPyTorch's examples. Conjugate
gradients and their tolerance are as GPyTorch has them by default.
"""

# GPyTorch's own types are loose, and it may not be installed.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportIncompatibleMethodOverride=false, reportOperatorIssue=false
from typing import Any

import torch
from torch import Tensor

INDUCING = 512
STEPS, RATE = 100, 0.1  # of the exact GP and SGPR
ALWAYS_CHOLESKY = 10**6
Answer = tuple[Tensor, Tensor, float]  # mean and std of the function, noise variance


def _exact_model(x: Tensor, y: Tensor, likelihood: Any, inducing: Tensor | None = None) -> Any:
    import gpytorch

    class Model(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(x, y, likelihood)
            self.mean_module, kernel = gpytorch.means.ConstantMean(), ard_kernel(x.shape[1])
            few = None if inducing is None else gpytorch.kernels.InducingPointKernel(kernel, inducing, likelihood)
            self.covar_module = kernel if few is None else few

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    return Model().double()


def ard_kernel(features: int) -> Any:
    import gpytorch

    return gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=features))


def gaussian_noise() -> Any:
    import gpytorch

    return gpytorch.likelihoods.GaussianLikelihood().double()


def some_points(x: Tensor) -> Tensor:
    return x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:INDUCING]].clone()


def _train_exact(model: Any, likelihood: Any, x: Tensor, y: Tensor) -> None:
    import gpytorch

    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    model.train()
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)  # the likelihood is part of the model
    for _ in range(STEPS):
        optimiser.zero_grad()
        (-objective(model(x), y)).backward()
        optimiser.step()


def answer(model: Any, likelihood: Any, new: Tensor) -> Answer:
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        latent = model(new)
        return latent.mean, latent.variance.clamp(min=0).sqrt(), float(likelihood.noise)


def exact(x: Tensor, y: Tensor, new: Tensor, tuning_rows: int, *, cholesky: bool) -> Answer:
    """Tuned on some rows by Cholesky, then given all."""
    import gpytorch

    few, likelihood = min(tuning_rows, len(x)), gaussian_noise()
    with gpytorch.settings.max_cholesky_size(ALWAYS_CHOLESKY):
        model = _exact_model(x[:few], y[:few], likelihood)
        _train_exact(model, likelihood, x[:few], y[:few])
    model.set_train_data(x, y, strict=False)
    size = ALWAYS_CHOLESKY if cholesky else gpytorch.settings.max_cholesky_size.value()
    with gpytorch.settings.max_cholesky_size(size):
        return answer(model, likelihood, new)


def sgpr(x: Tensor, y: Tensor, new: Tensor, tuning_rows: int) -> Answer:
    """Titsias's bound on all rows."""
    likelihood = gaussian_noise()
    model = _exact_model(x, y, likelihood, some_points(x))
    _train_exact(model, likelihood, x, y)
    return answer(model, likelihood, new)
