"""The log marginal likelihood of hyper-parameters and its gradient, by a dense Cholesky factorisation."""

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.threads import FEW_ROWS, one_thread
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
            return InfiniteShares(tangent.single.with_settings(settings), self.problem.data.x, self.groups)
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
            systems = self._systems(logs, (kernels or self.kernels(logs)).matrix(logs[PRIOR].exp()))
            return -math.inf if systems is None else sum(system.value for system in systems)

    def gradient(self, logs: Logs) -> float:
        """Return log p(y) and add its gradient to the ``grad`` of the leaves in `logs`; no gradient if the value is −∞.

        Cost: (n·C)³ operations, and what :meth:`KernelShares.backward` takes; n³ for each different noise of the outputs of an
        infinite network. Memory: two matrices of that size, one more for each different noise, and the kernels.
        """
        kernels = self.kernels(logs)
        with torch.no_grad():
            systems = self._systems(logs, kernels.matrix(logs[PRIOR].exp()))
            if systems is None:
                return -math.inf
            value, by_noise = sum(system.value for system in systems), torch.empty_like(self._residual)
            with self._threads:
                by_matrix = systems[0].gradient(by_noise)
                for system in systems[1:]:
                    by_matrix += system.gradient(by_noise)
            del systems
            prior = logs[PRIOR].detach().exp()
            if NOISE in logs:
                by_log = by_noise.reshape(-1, self.problem.outputs) * self._noise(logs)
                _add(logs[NOISE], by_log.sum(dim=0) if len(logs[NOISE]) > 1 else by_log.sum().unsqueeze(0))
        _add(logs[PRIOR], prior * kernels.backward(prior, by_matrix))
        return value

    def _setting(self, name: str, log: Tensor) -> Tensor:
        return log.exp() * self.base[name] if name in self.base else log.exp()

    def _noise(self, logs: Mapping[str, Tensor]) -> Float[Tensor, "n C"]:
        """Return the noise variance of each row."""
        known = self.problem.data.noise_std.square().unflatten(0, (-1, self.problem.outputs))
        return logs[NOISE].detach().exp().expand_as(known) if NOISE in logs else known

    @property
    def _apart(self) -> bool:
        """Whether the outputs are separate regressions with one kernel, as those of infinite networks are."""
        return isinstance(self.tangent, InfiniteTangent)

    @property
    def _residual(self) -> Float[Tensor, "rows columns"]:
        """A column per regression: (n, C), or (n·C, 1) if the outputs have a kernel in common."""
        return self.problem.data.residual.view(-1, self.problem.outputs if self._apart else 1)

    @property
    def _threads(self) -> AbstractContextManager[None]:
        return one_thread(self._apart and len(self._residual) < FEW_ROWS)

    def _systems(self, logs: Logs, matrix: Tensor) -> "list[_System] | None":
        """A factorised matrix for each different noise; None if one is not positive definite. The kernel is overwritten."""
        residual = self._residual
        noise = self._noise(logs).reshape(residual.shape)
        different, which = torch.unique(noise, dim=1, return_inverse=True)
        systems = []
        with self._threads:
            for k, variances in enumerate(different.unbind(dim=1)):
                own = matrix if k + 1 == different.shape[1] else matrix.clone()
                own.diagonal().add_(variances)
                factor, info = torch.linalg.cholesky_ex(own, out=(own, torch.empty(0, dtype=torch.int32, device=own.device)))
                if info.any() or not bool(torch.isfinite(factor.diagonal()).all()):
                    return None
                systems.append(_System.of(factor, residual, (which == k).nonzero().flatten()))
        return systems


@dataclass(frozen=True)
class _System:
    """The regressions with one noise: A = LLᵀ and α = A⁻¹r, a column each."""

    factor: Float[Tensor, "rows rows"]
    alpha: Float[Tensor, "rows some"]
    columns: Tensor  # which of the regressions
    value: float  # log p(y) of all of them

    @classmethod
    def of(cls, factor: Tensor, residual: Tensor, columns: Tensor) -> "_System":
        """Solve, and compute log p(y)."""
        r = residual[:, columns]
        alpha = torch.cholesky_solve(r, factor)
        constant = factor.diagonal().log().sum() + 0.5 * len(r) * math.log(2 * math.pi)
        return cls(factor, alpha, columns, float(-0.5 * (r * alpha).sum() - len(columns) * constant))

    def gradient(self, by_noise: Tensor) -> Float[Tensor, "rows rows"]:
        """The gradient of the value by A, Σ ½(ααᵀ − A⁻¹); write that by the noise of each row into `by_noise`."""
        inverse, count = torch.cholesky_inverse(self.factor), len(self.columns)
        by_noise[:, self.columns] = 0.5 * (self.alpha.square() - inverse.diagonal().unsqueeze(1))
        return torch.addmm(inverse, self.alpha, self.alpha.T, beta=-0.5 * count, alpha=0.5, out=inverse)


def _add(leaf: Tensor, gradient: Tensor) -> None:
    if leaf.requires_grad:
        leaf.grad = gradient if leaf.grad is None else leaf.grad + gradient
