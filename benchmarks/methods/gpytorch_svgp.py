"""GPyTorch's stochastic variational Gaussian process."""

# GPyTorch's own types are loose, and it may not be installed.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportIncompatibleMethodOverride=false, reportOperatorIssue=false
from typing import Any

import torch
from torch import Tensor

from benchmarks.methods.gpytorch_models import Answer, answer, ard_kernel, gaussian_noise, some_points

RATE, ROWS, BATCH = 0.01, 300_000, 1024  # rows seen in all epochs together


def svgp(x: Tensor, y: Tensor, new: Tensor, tuning_rows: int) -> Answer:
    """Stochastic variational inference on all rows."""
    import gpytorch

    likelihood, model = gaussian_noise(), _variational_model(some_points(x))
    objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(x))
    model.train()
    likelihood.train()
    optimiser = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=RATE)
    g = torch.Generator().manual_seed(0)
    for _ in range(max(1, ROWS // len(x))):
        for part in torch.randperm(len(x), generator=g).split(BATCH):
            optimiser.zero_grad()
            (-objective(model(x[part]), y[part])).backward()
            optimiser.step()
    return answer(model, likelihood, new)


def _variational_model(inducing: Tensor) -> Any:
    import gpytorch

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            distribution = gpytorch.variational.CholeskyVariationalDistribution(len(inducing))
            super().__init__(gpytorch.variational.VariationalStrategy(self, inducing, distribution))
            self.mean_module, self.covar_module = gpytorch.means.ConstantMean(), ard_kernel(inducing.shape[1])

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    return Model().double()
