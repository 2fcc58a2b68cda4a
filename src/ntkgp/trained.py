"""The paper's posterior: the mean and the covariance from copies of the network trained by gradient descent."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp._types import MeanFunction
from ntkgp.archive import State
from ntkgp.covariance import (
    CovarianceEstimate,
    CovarianceParts,
    CovariancePlan,
    PaperCovariance,
    TightCovariance,
    plan_covariance,
)
from ntkgp.exact import Exact
from ntkgp.linalg.head import Head
from ntkgp.linalg.svd import DenseSVD, PartialSVD, SVDMethod
from ntkgp.posterior import FunctionSample, Posterior, Prediction
from ntkgp.predictors import NetworkPredictors, Predictors, train_predictors
from ntkgp.problem import Problem
from ntkgp.stored_problem import problem_state, stored_problem
from ntkgp.training import AcceleratedGD, Trainer
from ntkgp.training_task import Copies, TrainedWeights

ESTIMATES = {"tight": TightCovariance, "paper": PaperCovariance}  # by their names in files


@dataclass(frozen=True)
class TrainedNetworks:
    """The paper's system: 1 + K + T copies of the network, trained together by gradient descent.

    One copy learns y (Algorithm 1), K learn the top left singular vectors of the Jacobian and T learn random targets
    (Algorithm 2). Cost: the partial SVD and (1 + K + T) trainings; memory (1 + K + T)·6·P numbers while training.

    Args:
        rank: K.
        tail: T, the paper's K′.
        svd: how the singular vectors are found.
        trainer: how the copies are trained.
        covariance: how predictors become a covariance, ours or the paper's.

    Example:
        >>> import torch, ntkgp
        >>> g = torch.Generator().manual_seed(0)
        >>> net = ntkgp.mlp(1, width=64, generator=g)
        >>> x = torch.linspace(-1, 1, 8).unsqueeze(1)
        >>> posterior = ntkgp.fit(net, x, torch.sin(3 * x[:, 0]), noise_var=0.05, method=ntkgp.TrainedNetworks(rank=4))
        >>> p = posterior.predict(torch.tensor([[0.0], [5.0]]))
        >>> bool((p.lower <= p.variance).all() and (p.variance <= p.upper).all())
        True
    """

    rank: int = 5
    tail: int = 0
    svd: SVDMethod = field(default_factory=DenseSVD)
    trainer: Trainer = field(default_factory=AcceleratedGD)
    covariance: CovarianceEstimate = field(default_factory=TightCovariance)

    dtype = torch.float64  # of the SVD and the bracket; the copies train in the trainer's

    def fit(self, problem: Problem, generator: torch.Generator | None = None, progress: bool = False) -> "TrainedPosterior":
        """Find the singular vectors, train all copies, put the posterior together."""
        plan = plan_covariance(problem, self.rank, self.tail, self.svd, self.covariance, generator)
        targets = torch.cat([problem.residual.unsqueeze(1), plan.targets], dim=1)
        roles = ["mean"] + ["covariance"] * plan.targets.shape[1]
        predictors = train_predictors(problem, targets, roles, plan.svd, self.trainer, progress)
        return TrainedPosterior(plan, predictors, plan.bracket())


@dataclass(frozen=True)
class TrainedPosterior(Posterior):
    """A posterior whose mean and variance come from evaluating trained copies of the network."""

    plan: CovariancePlan
    predictors: Predictors
    bracket: Head

    kind = "trained"

    def predict(self, x: Tensor, *, noise_var: float | Tensor | None = None) -> Prediction:
        """Mean and variance by 1 + K + T forward passes, and K Jacobian products for the bracket.

        Training error and Monte-Carlo error cannot move the variance out of the bracket: it is clipped to it.
        """
        problem, x = self.plan.problem, self.plan.problem.checked(x)
        columns = zip(*[self._predict(part) for part in x.split(16384)], strict=True)
        mean, variance, lower, upper = (problem.shaped(torch.cat(column)) for column in columns)
        noise = problem.noise_at(x, noise_var)
        return Prediction(mean, variance, lower, upper, None if noise is None else problem.shaped(noise.flatten()))

    def _predict(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mean, parts = self._evaluate(x)
        jacobian = self.plan.problem.tangent.at(x)
        prior = jacobian.diag()
        lower = self.bracket.lower(jacobian.matmat(self.bracket.v), prior)
        upper = torch.maximum(prior - jacobian.matmat(self.plan.svd.v).square() @ self.plan.bound_weights(), lower)
        variance = torch.clamp(prior - parts.explained_diag(), lower, upper)
        return self.plan.problem.mean_at(x) + mean, variance, lower, upper

    def covariance(self, x: Tensor) -> Float[Tensor, "MC MC"]:
        """The joint covariance: the estimate, less the negative part that training and Monte-Carlo errors may give it."""
        values, vectors = torch.linalg.eigh(self.raw_covariance(x))
        return (vectors * values.clamp_min(0) @ vectors.T).to(self.plan.problem.user_dtype)

    def raw_covariance(self, x: Tensor) -> Float[Tensor, "MC MC"]:
        """J′J′ᵀ − P W Pᵀ − P′P′ᵀ/T as it comes, as in the paper's Query-Posterior-Covariance."""
        problem = self.plan.problem
        return problem.tangent.at(problem.checked(x)).kernel() - self._evaluate(x)[1].explained()

    def _evaluate(self, x: Tensor) -> tuple[Float[Tensor, "MC"], CovarianceParts]:
        values = self.predictors(x).to(self.plan.svd.s.dtype)
        return values[:, 0], self.plan.parts(values[:, 1:])

    def sample(self, count: int, *, generator: torch.Generator | None = None) -> FunctionSample:
        """Exact draws of the linearised network, for N·C small enough for a dense kernel."""
        return Exact().fit(self.plan.problem).sample(count, generator=generator)

    def state(self) -> State:
        """All that the posterior is made of, less the network; the copies as their displacements from it."""
        names = [name for name, kind in ESTIMATES.items() if type(self.plan.estimate) is kind]
        if not names:
            raise ValueError(
                f"only TightCovariance and PaperCovariance can be saved, got {type(self.plan.estimate).__name__}, which is code"
            )
        assert isinstance(self.predictors, NetworkPredictors)
        weights = self.predictors.trained
        double = {"dtype": torch.float64, "device": "cpu"}
        return problem_state(self.plan.problem) | State.of(
            estimate=names[0], svd=self.plan.svd, tail=self.plan.tail, bracket=self.bracket, deltas=weights.deltas,
            scale=weights.scale, steps=weights.steps, converged=weights.converged,
            accuracy=torch.tensor(weights.accuracy, **double),  # not JSON, which knows no NaN
            losses=torch.tensor(weights.losses, **double).reshape(-1, len(weights.scale)), seconds=weights.seconds,
        )  # fmt: skip

    @classmethod
    def from_state(cls, state: State, module: nn.Module, prior_mean: MeanFunction | None) -> "TrainedPosterior":
        """The posterior again; prior_mean is the function, where it was one."""
        problem, double = stored_problem(state, module, prior_mean), torch.float64
        estimate = state.fact("estimate", str)
        if estimate not in ESTIMATES:
            raise ValueError(f"'estimate' must be one of {list(ESTIMATES)}, got {estimate!r}")
        svd = state.build(PartialSVD, "svd", double, u="NC K", s="K", v="P K", residuals="K")
        plan = CovariancePlan(problem, svd, ESTIMATES[estimate](), state.tensor("tail", "NC T", double))
        deltas = state.tensor("deltas", "1+K+T P")
        weights = TrainedWeights(
            deltas=deltas,
            scale=state.tensor("scale", "1+K+T", deltas.dtype),
            steps=state.fact("steps", list),
            converged=state.fact("converged", list),
            accuracy=state.tensor("accuracy", "1+K+T", double).tolist(),
            losses=state.tensor("losses", "R 1+K+T", double).tolist(),
            seconds=state.fact("seconds", float),
        )
        copies = Copies(problem.network.to(deltas.dtype), problem.tangent.space, problem.tangent.scales)
        bracket = state.build(Head, "bracket", double, v="P K", image="P K", values="K")
        return cls(plan, NetworkPredictors(copies, weights), bracket)
