"""A dense float64 referee: the equations written down as they stand, by plain autograd. It never imports the library."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn


def error(got: Tensor, expected: Tensor) -> float:
    """‖got − expected‖ / ‖expected‖, in float64."""
    expected = expected.detach().double()
    return float((got.detach().double() - expected).norm() / expected.norm())


def double(x: Tensor) -> Tensor:
    return x.detach().double() if x.is_floating_point() else x


def outputs(module: nn.Module, x: Tensor) -> Tensor:
    """f(x; θ0), flattened point-major."""
    with torch.no_grad():
        return copy.deepcopy(module).double()(double(x)).reshape(-1)


def prior_std(name: str, prior_var: float | Mapping[str, float]) -> float:
    """The prior standard deviation of a parameter: that of the longest module name in front of its own."""
    if not isinstance(prior_var, Mapping):
        return math.sqrt(prior_var)
    parts = name.split(".")
    prefixes = [".".join(parts[:length]) for length in range(len(parts), -1, -1)]
    return math.sqrt(next(prior_var[prefix] for prefix in prefixes if prefix in prior_var))


def jacobian(module: nn.Module, x: Tensor, prior_var: float | Mapping[str, float] = 1.0) -> Tensor:
    """J(x), NC×P: trainable parameters in the order of named_parameters, each times its prior standard deviation."""
    module = copy.deepcopy(module).double()
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    with torch.enable_grad():
        values = module(double(x)).reshape(-1)
    rows = []
    for value in values:
        grads = torch.autograd.grad(value, list(named.values()), retain_graph=True, allow_unused=True)
        parts = [
            torch.zeros(p.numel(), dtype=torch.float64) if g is None else g.reshape(-1) * prior_std(name, prior_var)
            for (name, p), g in zip(named.items(), grads, strict=True)
        ]
        rows.append(torch.cat(parts))
    return torch.stack(rows)


@dataclass(frozen=True)
class Oracle:
    """A regression problem with its Jacobians at N training and M query points; residual and noise have N·C entries."""

    train: Tensor
    query: Tensor
    residual: Tensor
    noise: Tensor
    query_mean: Tensor

    @property
    def kernel(self) -> Tensor:
        return self.train @ self.train.T

    @property
    def prior(self) -> Tensor:
        return self.query @ self.query.T

    @property
    def noisy(self) -> Tensor:
        """A = K(x, x) + diag(σ²)."""
        return self.kernel + torch.diag(self.noise)

    @property
    def smoother(self) -> Tensor:
        """M = K(x′, x) A⁻¹."""
        return torch.linalg.solve(self.noisy, self.train @ self.query.T).T

    @property
    def mean(self) -> Tensor:
        return self.query_mean + self.smoother @ self.residual

    @property
    def covariance(self) -> Tensor:
        return self.prior - self.smoother @ (self.train @ self.query.T)

    @property
    def variance(self) -> Tensor:
        return self.covariance.diagonal()

    @property
    def log_marginal_likelihood(self) -> float:
        fit = self.residual @ torch.linalg.solve(self.noisy, self.residual)
        return float(-0.5 * (fit + torch.linalg.slogdet(self.noisy)[1] + len(self.noise) * math.log(2 * math.pi)))

    def _head(self, rank: int | None) -> tuple[Tensor, Tensor]:
        """P = M U and Σ² for the top singular vectors of J; one noise variance for all observations is assumed."""
        assert bool((self.noise == self.noise[0]).all())
        u, s, _ = torch.linalg.svd(self.train, full_matrices=False)
        return self.smoother @ u[:, :rank], s[:rank].square()

    def paper_bound(self, rank: int | None = None) -> Tensor:
        """J′J′ᵀ − P Σ² Pᵀ: the paper's upper bound with K singular vectors, with all of them when None."""
        head, squares = self._head(rank)
        return self.prior - head * squares @ head.T

    def our_bound(self, rank: int | None = None) -> Tensor:
        """J′J′ᵀ − P (Σ² + σ²) Pᵀ."""
        head, squares = self._head(rank)
        return self.prior - head * (squares + self.noise[0]) @ head.T

    @property
    def rank(self) -> int:
        """The numerical rank of J."""
        return int(torch.linalg.matrix_rank(self.train))


def pose(
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    query: Tensor,
    noise_var: float | Tensor,
    prior_var: float | Mapping[str, float] = 1.0,
    prior_means: tuple[Tensor, Tensor] | None = None,
) -> Oracle:
    """The oracle's view of a problem; `prior_means` are the values of m at x and at the query points (zero when None)."""
    train, at_query = jacobian(module, x, prior_var), jacobian(module, query, prior_var)
    C = len(train) // len(x)
    noise = noise_var.double() if isinstance(noise_var, Tensor) else torch.tensor(noise_var, dtype=torch.float64)
    noise = noise.unsqueeze(-1).expand(len(x), C) if noise.ndim == 1 else noise.expand(len(x), C)
    means = (torch.zeros(len(train)), torch.zeros(len(at_query))) if prior_means is None else prior_means
    residual = y.detach().double().reshape(-1) - means[0].detach().double().reshape(-1)
    return Oracle(train, at_query, residual, noise.reshape(-1), means[1].detach().double().reshape(-1))
