"""The analytic posterior, equations (1) and (2) of the paper: dense kernel, Cholesky."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp._checks import check_count
from ntkgp._types import MeanFunction
from ntkgp.archive import State
from ntkgp.linalg.cholesky import cholesky
from ntkgp.posterior import FunctionSample, Posterior, Prediction
from ntkgp.problem import Problem
from ntkgp.stored_problem import problem_state, stored_problem
from ntkgp.tangent.memory import rows_per_chunk

BLOCK = 128  # points whose kernel is formed together in `joint`: few calls, little thrown away


@dataclass(frozen=True)
class Exact:
    """Dense kernel and Cholesky: the exact posterior, for N·C up to some ten thousand.

    Cost: (N·C)³/3 operations and 2·(N·C)² numbers. Computes in float64, since λ₁/σ² often exceeds what float32 carries, and
    answers in the dtype of y.

    Args:
        dtype: the dtype to compute in; float32 only for modules or devices that cannot do float64.

    Example:
        >>> import torch, ntkgp
        >>> g = torch.Generator().manual_seed(0)
        >>> net = ntkgp.mlp(1, width=64, generator=g)
        >>> x = torch.linspace(-1, 1, 5).unsqueeze(1)
        >>> posterior = ntkgp.fit(net, x, torch.sin(3 * x[:, 0]), noise_var=0.01, method=ntkgp.Exact())
        >>> posterior.predict(torch.tensor([[0.0], [5.0]])).std.round(decimals=2)
        tensor([ 0.1000, 11.3800])
    """

    dtype: torch.dtype = torch.float64

    def fit(self, problem: Problem) -> "ExactPosterior":
        """Factorise K(x, x) + σ²I, once."""
        gram = problem.whitened.gram
        assert gram is not None
        matrix = gram()
        matrix.diagonal().add_(1.0)
        factor = cholesky(matrix)
        alpha = torch.cholesky_solve(problem.whitened_residual.unsqueeze(1), factor).squeeze(1)
        return ExactPosterior(problem, factor, alpha)


@dataclass(frozen=True)
class ExactPosterior(Posterior):
    """The exact posterior: Ã = I + K̃ factorised, α = Ã⁻¹ r̃."""

    problem: Problem
    factor: Float[Tensor, "NC NC"]
    alpha: Float[Tensor, "NC"]

    kind = "exact"

    @property
    def log_marginal_likelihood(self) -> float:
        """Log p(y) = −½ rᵀA⁻¹r − ½ log det A − (N·C/2) log 2π."""
        r, std = self.problem.whitened_residual, self.problem.noise_std
        log_det = 2 * self.factor.diagonal().log().sum() + 2 * std.log().sum()
        return float(-0.5 * (r @ self.alpha + log_det + len(r) * torch.log(torch.tensor(2 * torch.pi, dtype=r.dtype))))

    def leave_one_out(self) -> tuple[Tensor, Tensor]:
        """Each training target predicted from all the others: its error in predictive standard deviations, and those.

        From the diagonal of A⁻¹, without refitting: the variance of an observation given the others is its reciprocal. Memory:
        (N·C)² numbers.
        """
        scale = torch.cholesky_inverse(self.factor).diagonal().rsqrt()
        return self.problem.shaped(self.alpha * scale), self.problem.shaped(scale * self.problem.noise_std)

    @cached_property
    def _weights(self) -> Float[Tensor, "P 1"]:
        """J̃ᵀα: the mean's displacement of the weights."""
        return self.problem.whitened.rmatmat(self.alpha.unsqueeze(1))

    def mean(self, x: Tensor) -> Tensor:
        """The mean by a product with J(x). Cost: 2·M·C·P operations, and as many for each training point the first time."""
        problem, x = self.problem, self.problem.checked(x)
        parts = [problem.mean_at(part) + problem.tangent.at(part).matmat(self._weights)[:, 0] for part in x.split(16384)]
        return problem.shaped(torch.cat(parts))

    def predict(self, x: Tensor, *, noise_var: float | Tensor | None = None) -> Prediction:
        """Mean and variance at x, equations (1) and (2); lower = variance = upper.

        Cost: M·C·(N·C)² operations; memory of a block of 256 MB beside the training factors.
        """
        problem, x = self.problem, self.problem.checked(x)
        rows = rows_per_chunk(8 * len(self.alpha) * problem.outputs, budget=256 * 2**20)
        means, variances = [], []
        for part in x.split(rows):
            jacobian = problem.tangent.at(part)
            cross = jacobian.kernel(problem.jacobian) / problem.noise_std
            means.append(problem.mean_at(part) + cross @ self.alpha)
            explained = torch.linalg.solve_triangular(self.factor, cross.T, upper=False).square().sum(dim=0)
            variances.append((jacobian.diag() - explained).clamp_min(0))
        variance = problem.shaped(torch.cat(variances))
        noise = problem.noise_at(x, noise_var)
        return Prediction(
            mean=problem.shaped(torch.cat(means)),
            variance=variance,
            lower=variance,
            upper=variance,
            noise_var=None if noise is None else problem.shaped(noise.flatten()),
        )

    def covariance(self, x: Tensor) -> Float[Tensor, "MC MC"]:
        """K(x′,x′) − K(x′,x) A⁻¹ K(x,x′). Memory: 2·(M·C)² + 2·M·C·N·C numbers."""
        problem, x = self.problem, self.problem.checked(x)
        jacobian = problem.tangent.at(x)
        cross = jacobian.kernel(problem.jacobian) / problem.noise_std
        half = torch.linalg.solve_triangular(self.factor, cross.T, upper=False)
        covariance = jacobian.kernel() - half.T @ half
        covariance.diagonal().clamp_min_(0)
        return covariance.to(problem.user_dtype)

    def joint(self, x: Float[Tensor, "B q *point"]) -> tuple[Float[Tensor, "B q C"], Float[Tensor, "B qC qC"]]:
        """Mean and joint epistemic covariance of B groups of q points, each group by itself; differentiable in x.

        Cost: B·q·C·(N·C)² operations, and kernels of tiles of 128 points, of which the groups' blocks are kept. Memory: a block
        of 256 MB and the result, never the (B·q·C)² matrix.
        """
        problem, (q, C) = self.problem, (x.shape[1], self.problem.outputs)
        points = rows_per_chunk(8 * len(self.alpha) * C, budget=256 * 2**20) if q * C == 1 else BLOCK
        means, covariances = [], []
        for part in x.split(max(1, points // q)):
            flat = problem.checked(part.flatten(0, 1))
            jacobian = problem.tangent.at(flat)
            cross = jacobian.kernel(problem.jacobian) / problem.noise_std
            means.append(problem.mean_at(flat) + cross @ self.alpha)
            half = torch.linalg.solve_triangular(self.factor, cross.T, upper=False).T.unflatten(0, (len(part), q * C))
            if q * C == 1:
                prior = jacobian.diag().view(-1, 1, 1)
            else:
                prior = jacobian.kernel().view(len(part), q * C, len(part), q * C).diagonal(dim1=0, dim2=2).movedim(-1, 0)
            covariance = prior - half @ half.mT
            covariance.diagonal(dim1=1, dim2=2).clamp_min_(0)
            covariances.append(covariance)
        mean = torch.cat(means).unflatten(0, (len(x), q, C))
        return mean.to(problem.user_dtype), torch.cat(covariances).to(problem.user_dtype)

    def sample(self, count: int, *, generator: torch.Generator | None = None) -> FunctionSample:
        """Exact draws. Cost: 4·N·C·P operations and a triangular solve a draw; memory 2·P·count numbers."""
        check_count(count, "count", 1)
        operator = self.problem.whitened
        rows, parameters = operator.shape
        z, noise = operator.normal(parameters, count, generator), operator.normal(rows, count, generator)
        surprise = self.problem.whitened_residual.unsqueeze(1) - operator.matmat(z) - noise
        return FunctionSample(self.problem, z + operator.rmatmat(torch.cholesky_solve(surprise, self.factor)))

    def state(self) -> State:
        """All that the posterior is made of, less the network."""
        return problem_state(self.problem) | State.of(factor=self.factor, alpha=self.alpha)

    @classmethod
    def from_state(cls, state: State, module: nn.Module, prior_mean: MeanFunction | None) -> "ExactPosterior":
        """The posterior again; prior_mean is the function, where it was one."""
        problem = stored_problem(state, module, prior_mean)
        dtype = problem.network.dtype
        return cls(problem, state.tensor("factor", "NC NC", dtype), state.tensor("alpha", "NC", dtype))
