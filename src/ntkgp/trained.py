"""The paper's posterior: the mean and the covariance from copies of the network trained by gradient descent."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp._types import MeanFunction
from ntkgp.archive import State
from ntkgp.checkpoint import Checkpoint, Progress
from ntkgp.covariance import (
    CovarianceEstimate,
    CovarianceParts,
    CovariancePlan,
    PaperCovariance,
    TightCovariance,
    plan_covariance,
)
from ntkgp.distributed import Group
from ntkgp.exact import Exact, ExactPosterior
from ntkgp.linalg.head import Head
from ntkgp.linalg.svd import DenseSVD, Lanczos, PartialSVD, PowerIteration, RandomizedSVD, SVDMethod
from ntkgp.more_data import Data, with_more
from ntkgp.network_samples import draw_networks
from ntkgp.posterior import FunctionSample, Posterior, Prediction
from ntkgp.predictors import NetworkPredictors, train_predictors
from ntkgp.problem import Problem
from ntkgp.shares import shares_of, train_shares
from ntkgp.stored_problem import problem_state, stored_head, stored_problem
from ntkgp.tangent.memory import by_halves, out_of_memory
from ntkgp.training import AcceleratedGD, Adam, Trainer
from ntkgp.training_task import Copies, TrainedWeights

T = TypeVar("T")
# By their names in files.
ESTIMATES = {"tight": TightCovariance, "paper": PaperCovariance}
SVDS: dict[str, type[SVDMethod]] = {kind.__name__: kind for kind in (DenseSVD, PowerIteration, RandomizedSVD, Lanczos)}
ELSEWHERE = "these networks were trained elsewhere, or by a trainer that files cannot hold, so it is not known how to go on"
TRAINERS: dict[str, type[Trainer]] = {kind.__name__: kind for kind in (AcceleratedGD, Adam)}


@dataclass(frozen=True)
class TrainedNetworks:
    """The paper's system: 1 + K + T copies of the network, trained together by gradient descent.

    One copy learns y (Algorithm 1), K learn the top left singular vectors of the Jacobian and T learn random targets
    (Algorithm 2); its posterior's ``sample_networks`` draws functions by training more. Cost: the partial SVD and (1 + K + T)
    trainings; memory (1 + K + T)·6·P numbers while training.

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

    @out_of_memory("lower rank and tail of TrainedNetworks, or give it svd=ntkgp.RandomizedSVD()")
    def fit(
        self,
        problem: Problem,
        generator: torch.Generator | None = None,
        progress: bool = False,
        checkpoint: Checkpoint | None = None,
        group: Group | None = None,
    ) -> "TrainedPosterior":
        """Find the singular vectors, train all copies, put the posterior together.

        With a group every rank has all points, and trains its share of the copies.
        """
        identity = {} if checkpoint is None else problem.identity | {"method": repr(self)}
        kept = Progress(checkpoint, identity, generator, problem.network.device, group)
        plan, shares = self._plan(problem, kept)
        targets = torch.cat([problem.residual.unsqueeze(1), plan.targets], dim=1)
        roles = ["mean"] + ["covariance"] * plan.targets.shape[1]
        predictors = train_shares(problem, targets, roles, plan.svd, self.trainer, shares, kept, progress)
        return TrainedPosterior(plan, predictors, plan.bracket(), self.svd, self.trainer)

    def _plan(self, problem: Problem, kept: Progress) -> tuple[CovariancePlan, list[list[int]]]:
        """What the copies learn, as rank 0 found it, and how they are shared out; kept, and taken from there."""
        state, double = kept.load("plan"), torch.float64
        if state is None:
            found = plan_covariance(problem, self.rank, self.tail, self.svd, self.covariance, kept.generator)
            shares = shares_of(1 + self.rank + self.tail, kept.group)
            state = kept.same(State.of(svd=found.svd, z=found.z, noise=found.noise, tail=found.tail, shares=shares))
            kept.save("plan", state)
        svd = state.build(PartialSVD, "svd", double, u="NC K", s="K", v="P K", residuals="K")
        z, noise = state.tensor("z", "P Z", double), state.tensor("noise", "NC T", double)
        tail = state.tensor("tail", "NC T", double)
        return CovariancePlan(problem, svd, self.covariance, z, noise, tail), state.fact("shares", list)


@dataclass(frozen=True)
class TrainedPosterior(Posterior):
    """A posterior whose mean and variance come from evaluating trained copies of the network."""

    plan: CovariancePlan
    predictors: NetworkPredictors
    bracket: Head
    svd_method: SVDMethod | None = None  # how it goes on when more data comes; None for networks trained elsewhere
    trainer: Trainer | None = None
    problem: Problem = field(init=False)  # the plan's

    kind = "trained"

    def __post_init__(self) -> None:
        object.__setattr__(self, "problem", self.plan.problem)

    def mean(self, x: Tensor) -> Tensor:
        """The mean by one forward pass of the first trained copy."""
        problem, x = self.problem, self.problem.checked(x)
        change = self.predictors[:1](x)[:, 0].to(self.plan.svd.s.dtype)
        return problem.shaped(problem.mean_at(x) + change)

    @out_of_memory("ask about fewer points of x at a time")
    def predict(self, x: Tensor, *, noise_var: float | Tensor | None = None) -> Prediction:
        """Mean and variance by 1 + K + T forward passes, and K Jacobian products for the bracket.

        Training error and Monte-Carlo error cannot move the variance out of the bracket: it is clipped to it.
        """
        problem, x = self.problem, self.problem.checked(x)
        parts = [found for part in x.split(16384)
                 for found in by_halves(lambda some, part=part: self._predict(part[some]), len(part))]  # fmt: skip
        columns = zip(*parts, strict=True)
        mean, variance, lower, upper = (problem.shaped(torch.cat(column)) for column in columns)
        noise = problem.noise_at(x, noise_var)
        return Prediction(mean, variance, lower, upper, None if noise is None else problem.shaped(noise.flatten()))

    def _predict(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mean, parts = self._evaluate(x)
        jacobian = self.problem.tangent.at(x)
        prior = jacobian.diag()
        lower = self.bracket.lower(jacobian.matmat(self.bracket.v), prior)
        upper = torch.maximum(prior - jacobian.matmat(self.plan.svd.v).square() @ self.plan.bound_weights(), lower)
        variance = torch.clamp(prior - parts.explained_diag(), lower, upper)
        return self.problem.mean_at(x) + mean, variance, lower, upper

    @out_of_memory("ask about fewer points of x at a time")
    def covariance(self, x: Tensor) -> Float[Tensor, "MC MC"]:
        """The joint covariance: the estimate, less the negative part that training and Monte-Carlo errors may give it."""
        return self.problem.positive(self.raw_covariance(x))

    def raw_covariance(self, x: Tensor) -> Float[Tensor, "MC MC"]:
        """J′J′ᵀ − P W Pᵀ − P′P′ᵀ/T as it comes, as in the paper's Query-Posterior-Covariance."""
        problem = self.problem
        return problem.tangent.at(problem.checked(x)).kernel() - self._evaluate(x)[1].explained()

    def _evaluate(self, x: Tensor) -> tuple[Float[Tensor, "MC"], CovarianceParts]:
        values = self.predictors(x).to(self.plan.svd.s.dtype)
        return values[:, 0], self.plan.parts(values[:, 1:])

    @out_of_memory("draw fewer functions at a time, count")
    def sample(self, count: int, *, generator: torch.Generator | None = None) -> FunctionSample:
        """Draws of the linearised network around the trained mean, with the covariance of the Gaussian process itself.

        So they carry neither the Monte-Carlo error of ``covariance`` nor that of its rank; their variance lies in the bracket
        of ``predict``. Cost: a dense factorisation once, (N·C)³/3 operations, and then as for :class:`Exact`; memory (N·C)²
        and (P + N·C)·count numbers.
        """
        drawn = self._spread.sample(count, generator=generator)
        return replace(drawn, centre=lambda x: self._evaluate(x)[0])

    @out_of_memory("draw fewer networks at a time, count")
    def sample_networks(
        self, count: int, *, generator: torch.Generator | None = None, progress: bool = False
    ) -> FunctionSample:
        """`count` functions drawn by training as many networks: sample, then optimise.

        A function is m + Jz + the change of a copy of the network that was trained to r − Jz − ε, where z ~ N(0, I) are weights
        drawn from the prior and ε is fresh noise of the observations. While copies stay near their tangent, as the trainer's
        ``signal`` makes them, that is a draw from the exact posterior, mean included, whatever the rank. With a trainer that
        learns targets at their own size (``Adam()``, ``AcceleratedGD(signal=1.0)``) it is the Bayesian deep ensemble of He,
        Lakshminarayanan & Teh (2020), of networks that may learn features: one anchor for all, the whole prior in Jz.

        Cost: `count` trainings with the trainer of the fit, as one batch; memory `count`·6·P numbers, then `count`·2·P: for
        very many draws, draw some at a time from the same generator.

        Args:
            count: how many.
            generator: source of the draws; the global one when None.
            progress: show a progress bar.

        Example:
            >>> import torch, ntkgp
            >>> g = torch.Generator().manual_seed(0)
            >>> x = torch.linspace(-1, 1, 8).unsqueeze(1)
            >>> method, net = ntkgp.TrainedNetworks(rank=4), ntkgp.mlp(1, width=64, generator=g)
            >>> posterior = ntkgp.fit(net, x, torch.sin(3 * x[:, 0]), noise_var=0.05, method=method)
            >>> f = posterior.sample_networks(30, generator=g)
            >>> near, far = f(torch.tensor([[0.0], [5.0]])).std(dim=0)
            >>> bool(far > near)
            True
        """
        if self.trainer is None:
            raise ValueError(f"{ELSEWHERE}; call sample, which needs no training, or ntkgp.fit")
        return draw_networks(self.problem, self.plan.svd, self.trainer, count, generator, progress)

    @cached_property
    def _spread(self) -> ExactPosterior:
        """The exact posterior of the same points had all residuals been zero."""
        problem = self.plan.problem
        return Exact(problem.network.dtype).fit(replace(problem, residual=torch.zeros_like(problem.residual)))

    def update(
        self,
        x: Data,
        y: Tensor | None = None,
        *,
        noise_var: float | Tensor | None = None,
        generator: torch.Generator | None = None,
        progress: bool = False,
    ) -> "TrainedPosterior":
        """The posterior with more data: the copies go on training from where they are, to their new shifted targets.

        The singular vectors are found anew. What a copy answers is linear in its target (while it is near its tangent), so each
        starts from the combination of old copies whose targets come nearest to its own. Rank and tail stay, and the tail's
        draws are the old ones with noise for the new points. Cost: the partial SVD and (1 + K + T) trainings, which are short
        where little has changed; memory as in :class:`TrainedNetworks`.
        """
        if self.svd_method is None or self.trainer is None:
            raise ValueError(f"{ELSEWHERE}; call ntkgp.plan_training or ntkgp.fit with all data")
        old, (whole, _) = self.plan.problem, with_more(self.plan.problem, x, y, noise_var)
        plan = self.plan.extended(whole, self.svd_method, generator)
        before = torch.cat([old.residual.unsqueeze(1), self.plan.targets], dim=1) / old.noise_std.unsqueeze(1)
        targets = torch.cat([whole.residual.unsqueeze(1), plan.targets], dim=1)
        mix = torch.linalg.pinv(before) @ (targets[: len(before)] / old.noise_std.unsqueeze(1))
        trained = self.predictors.trained
        start = mix.T @ (trained.deltas / trained.scale.unsqueeze(1)).to(mix)
        roles = ["mean"] + ["covariance"] * plan.targets.shape[1]
        predictors = train_predictors(whole, targets, roles, plan.svd, self.trainer, progress, start)
        return TrainedPosterior(plan, predictors, plan.bracket(), self.svd_method, self.trainer)

    def state(self) -> State:
        """All that the posterior is made of, less the network; the copies as their displacements from it."""
        names = [name for name, kind in ESTIMATES.items() if type(self.plan.estimate) is kind]
        if not names:
            raise ValueError(
                f"only TightCovariance and PaperCovariance can be saved, got {type(self.plan.estimate).__name__}, which is code"
            )
        weights = self.predictors.trained
        # Of somebody else's classes only the results can be kept: they are code.
        svd_kind, trainer_kind = _name_of(self.svd_method, SVDS), _name_of(self.trainer, TRAINERS)
        how = ({"svd_method": self.svd_method} if svd_kind else {}) | ({"trainer": self.trainer} if trainer_kind else {})
        double = {"dtype": torch.float64, "device": "cpu"}
        return problem_state(self.plan.problem) | State.of(
            estimate=names[0], svd=self.plan.svd, z=self.plan.z, noise=self.plan.noise, tail=self.plan.tail,
            bracket=self.bracket, svd_kind=svd_kind, trainer_kind=trainer_kind, **how, deltas=weights.deltas,
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
        noise, z = state.tensor("noise", "NC T", double), state.tensor("z", "P Z", double)
        plan = CovariancePlan(problem, svd, ESTIMATES[estimate](), z, noise, state.tensor("tail", "NC T", double))
        deltas = state.tensor("deltas", "1+K+T P")
        weights = TrainedWeights(
            deltas=deltas,
            scale=state.tensor("scale", "1+K+T", deltas.dtype),
            steps=state.fact("steps", list),
            converged=state.fact("converged", list),
            accuracy=state.tensor("accuracy", "1+K+T", double, finite=False).tolist(),
            losses=state.tensor("losses", "R 1+K+T", double, finite=False).tolist(),
            seconds=state.fact("seconds", float),
        )
        copies = Copies(problem.network.to(deltas.dtype), problem.tangent.space, problem.tangent.scales)
        bracket = stored_head(state, "bracket")
        svd_method, trainer = (
            _rebuilt(state, "svd_method", "svd_kind", SVDS),
            _rebuilt(state, "trainer", "trainer_kind", TRAINERS),
        )
        return cls(plan, NetworkPredictors(copies, weights), bracket, svd_method, trainer)


def _name_of(part: object, kinds: Mapping[str, type]) -> str | None:
    return next((name for name, kind in kinds.items() if type(part) is kind), None)


def _rebuilt(state: State, name: str, kind: str, kinds: Mapping[str, type[T]]) -> T | None:
    chosen = state.fact(kind, str, type(None))
    if chosen is not None and chosen not in kinds:
        raise ValueError(f"{kind!r} must be one of {list(kinds)}, got {chosen!r}")
    return None if chosen is None else state.build(kinds[chosen], name)
