"""The log marginal likelihood of hyper-parameters and its gradient, by a dense Cholesky factorisation."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp.problem.problem import Problem
from ntkgp.tangent.infinite.shares import InfiniteShares
from ntkgp.tangent.infinite.tangent import InfiniteTangent
from ntkgp.tangent.interfaces import KernelShares, TangentKernel
from ntkgp.tangent.layer_kernels import LayerKernels
from ntkgp.tangent.tangent import Tangent

NOISE, PRIOR = "noise_var", "prior_var"
Logs = dict[str, Tensor]  # logarithms of noise variances, prior variances, and settings (scales) of the network, by name


@dataclass
class Likelihood:
    """Log p(y) as a function of the logarithms of noise, prior variances v_g and settings s of the network.

    A = Σ_g v_g K_g(s) + diag(noise). With α = A⁻¹r, the gradient by A is ½(ααᵀ − A⁻¹), the gradient by v_g is its inner product
    with K_g, and the gradient by s comes from a backward pass through the layer factors. Nothing is differentiated through the
    Cholesky factor or the kernel.

    Args:
        problem: residuals and tangent; its noise is used if the noise is not a hyper-parameter.
        groups: names of the parameters that share a prior variance, one list per group.
    """

    problem: Problem
    groups: list[list[str]]
    base: dict[str, Tensor] = field(default_factory=dict)  # tensor that the exponential of a setting multiplies; 1 if absent
    _constant: dict[int, Tensor] = field(
        default_factory=dict, init=False
    )  # cache of the kernels that do not depend on settings

    def kernels(self, logs: Logs) -> KernelShares:
        """Compute K_g at these settings."""
        settings, tangent = {n: self._setting(n, log) for n, log in logs.items() if n not in (NOISE, PRIOR)}, self.tangent
        if isinstance(tangent, InfiniteTangent):
            return InfiniteShares(tangent.with_settings(settings), self.problem.data.x, self.groups)
        assert isinstance(tangent, Tangent)
        if not settings and len(self._constant) == len(self.groups):
            return LayerKernels([self._constant[k] for k in range(len(self.groups))], [])
        return LayerKernels.at(tangent, self.problem.data.x, self.groups, settings, self._constant)

    @property
    def tangent(self) -> TangentKernel:
        """The network, with its prior."""
        return self.problem.operators.tangent

    def value(self, logs: Logs, kernels: KernelShares | None = None) -> float:
        """Return log p(y); minus infinity if A is not positive definite in float64."""
        with torch.no_grad():
            factor = self._factor(logs, kernels or self.kernels(logs))
            return -math.inf if factor is None else self._value(factor)[0]

    def gradient(self, logs: Logs) -> float:
        """Return log p(y) and add its gradient to the ``grad`` of the leaves in `logs`; no gradient if the value is −∞.

        Cost: (n·C)³ operations, and what :meth:`KernelShares.backward` takes. Memory: two (n·C)² matrices and the kernels.
        """
        kernels = self.kernels(logs)
        with torch.no_grad():
            factor = self._factor(logs, kernels)
            if factor is None:
                return -math.inf
            value, alpha = self._value(factor)
            by_matrix = torch.cholesky_inverse(factor).mul_(-0.5).addr_(alpha, alpha, alpha=0.5)
            del factor
            prior = logs[PRIOR].detach().exp()
            if NOISE in logs:
                by_noise = by_matrix.diagonal().unflatten(0, (-1, self.problem.outputs)) * self._noise(logs)
                _add(logs[NOISE], by_noise.sum(dim=0) if len(logs[NOISE]) > 1 else by_noise.sum().unsqueeze(0))
        _add(logs[PRIOR], prior * kernels.backward(prior, by_matrix))
        return value

    def _setting(self, name: str, log: Tensor) -> Tensor:
        return log.exp() * self.base[name] if name in self.base else log.exp()

    def _noise(self, logs: Mapping[str, Tensor]) -> Float[Tensor, "n C"]:
        """Return the noise variance of each row."""
        known = self.problem.data.noise_std.square().unflatten(0, (-1, self.problem.outputs))
        return logs[NOISE].detach().exp().expand_as(known) if NOISE in logs else known

    def _factor(self, logs: Logs, kernels: KernelShares) -> Tensor | None:
        matrix = kernels.matrix(logs[PRIOR].exp())
        matrix.diagonal().add_(self._noise(logs).flatten())
        factor, info = torch.linalg.cholesky_ex(matrix, out=(matrix, torch.empty(0, dtype=torch.int32, device=matrix.device)))
        return None if info.any() or not bool(torch.isfinite(factor.diagonal()).all()) else factor

    def _value(self, factor: Tensor) -> tuple[float, Float[Tensor, "nC"]]:
        r = self.problem.data.residual
        alpha = torch.cholesky_solve(r.unsqueeze(1), factor).squeeze(1)
        return float(-0.5 * (r @ alpha) - factor.diagonal().log().sum() - 0.5 * len(r) * math.log(2 * math.pi)), alpha


def _add(leaf: Tensor, gradient: Tensor) -> None:
    if leaf.requires_grad:
        leaf.grad = gradient if leaf.grad is None else leaf.grad + gradient
