"""The joint posterior of many small batches of points, conditioned on extra observations: dense and differentiable."""

from dataclasses import dataclass
from typing import Any

import torch
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from jaxtyping import Float
from linear_operator import to_linear_operator
from torch import Tensor

from ntkgp.posterior.exact.posterior import ExactPosterior
from ntkgp.posterior.interface import Posterior


@dataclass(frozen=True)
class Observations:
    """Observations added to a posterior's data, real or fantasised. Batches broadcast; gradients flow through."""

    x: Float[Tensor, "*batch n d"]
    y: Float[Tensor, "*batches n m"]
    noise: Tensor  # variance; broadcasts to y
    outputs: list[int]  # network output observed by each column of y

    def __deepcopy__(self, memo: dict[int, Any]) -> "Observations":
        return self  # never changes, and torch cannot copy tensors that are part of a graph

    @property
    def batch_shape(self) -> torch.Size:
        """The broadcast batch shape of x, y and noise."""
        return torch.broadcast_shapes(self.x.shape[:-2], self.y.shape[:-2], self.noise.shape[:-2])

    def rows(self, values: Tensor, batch: torch.Size) -> Float[Tensor, "*batch nm"]:
        """Expand y or noise to every batch and flatten it, point by point."""
        return values.expand(*batch, *self.y.shape[-2:]).flatten(-2)


def batch_shape(seen: tuple[Observations, ...]) -> torch.Size:
    """The broadcast batch shape of all observations."""
    return torch.broadcast_shapes(*(new.batch_shape for new in seen))


def joint(
    gp: Posterior, x: Float[Tensor, "*some q d"], outputs: list[int], seen: tuple[Observations, ...] = ()
) -> tuple[Float[Tensor, "*batch q m"], Float[Tensor, "*batch qm qm"]]:
    """Mean and covariance of the chosen outputs in each batch of q points, given the data and the observations `seen`.

    Computes in float64. Cost per batch with n observations: a posterior query at q + n points, plus (n·m)³ operations.
    """
    batch, q = torch.broadcast_shapes(x.shape[:-2], batch_shape(seen)), x.shape[-2]
    points = torch.cat([part.expand(*batch, *part.shape[-2:]) for part in (x, *(new.x for new in seen))], dim=-2)
    mean, covariance = _blocks(gp, points.reshape(-1, *points.shape[-2:]))
    C = mean.shape[-1]
    at_each = [outputs] * q + [new.outputs for new in seen for _ in range(new.x.shape[-2])]
    rows = torch.tensor([C * k + c for k, some in enumerate(at_each) for c in some], device=x.device)
    mean = mean.flatten(1)[:, rows].double().view(*batch, len(rows))
    covariance = covariance[:, rows.unsqueeze(1), rows].double().view(*batch, len(rows), len(rows))
    if seen:
        y = torch.cat([new.rows(new.y, batch) for new in seen], dim=-1)
        noise = torch.cat([new.rows(new.noise, batch) for new in seen], dim=-1)
        mean, covariance = conditioned(mean, covariance, y, noise)
    return mean.unflatten(-1, (q, len(outputs))), covariance


def conditioned(
    mean: Float[Tensor, "*batch k"],
    covariance: Float[Tensor, "*batch k k"],
    y: Float[Tensor, "*batch n"],
    noise: Float[Tensor, "*batch n"],
) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the first k − n variables, given observations y of the last n.

    Example:
        >>> import torch
        >>> conditioned(torch.zeros(2), torch.tensor([[1.0, 0.5], [0.5, 1.0]]), torch.ones(1), torch.ones(1))
        (tensor([0.2500]), tensor([[0.8750]]))
    """
    k = mean.shape[-1] - y.shape[-1]
    factor = torch.linalg.cholesky(covariance[..., k:, k:] + torch.diag_embed(noise))
    half = torch.linalg.solve_triangular(factor, covariance[..., k:, :k], upper=False)
    surprise = torch.linalg.solve_triangular(factor, (y - mean[..., k:]).unsqueeze(-1), upper=False)
    return mean[..., :k] + (half.mT @ surprise).squeeze(-1), covariance[..., :k, :k] - half.mT @ half


def gaussian(mean: Float[Tensor, "*batch q m"], covariance: Float[Tensor, "*batch qm qm"]) -> GPyTorchPosterior:
    """The joint Gaussian over q points and m outputs as a BoTorch posterior."""
    operator = to_linear_operator(covariance)
    if mean.shape[-1] == 1:
        return GPyTorchPosterior(MultivariateNormal(mean.squeeze(-1), operator))
    return GPyTorchPosterior(MultitaskMultivariateNormal(mean, operator))


def _blocks(gp: Posterior, x: Float[Tensor, "B q d"]) -> tuple[Float[Tensor, "B q C"], Float[Tensor, "B qC qC"]]:
    """Mean and covariance of each batch, for all outputs."""
    if isinstance(gp, ExactPosterior):
        return gp.joint(x)
    p, outputs = gp.predict(x.flatten(0, 1)), gp.problem.outputs
    alone = x.shape[1] * outputs == 1
    covariance = p.variance.reshape(-1, 1, 1) if alone else torch.stack([gp.covariance(group) for group in x])
    return p.mean.reshape(*x.shape[:2], outputs), covariance
