"""The posterior of trained networks."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp._system.locks import cached_property
from ntkgp._system.memory import out_of_memory
from ntkgp._system.types import MeanFunction
from ntkgp.linalg.cgls import NormalSystem
from ntkgp.linalg.chi_squared import scaled, variance_interval
from ntkgp.linalg.head import Head
from ntkgp.linalg.svd.dense import DenseSVD
from ntkgp.linalg.svd.lanczos import Lanczos
from ntkgp.linalg.svd.partial_svd import PartialSVD, SVDMethod
from ntkgp.linalg.svd.subspace import PowerIteration, RandomizedSVD
from ntkgp.posterior.exact.method import Exact
from ntkgp.posterior.exact.posterior import ExactPosterior
from ntkgp.posterior.interface import Posterior, why_of
from ntkgp.posterior.prediction import Prediction
from ntkgp.posterior.queries import predict_chunks
from ntkgp.posterior.samples import LinearSample
from ntkgp.posterior.sharpening import Sharpening, check_sharpening
from ntkgp.posterior.trained.covariance import (
    CovarianceEstimate,
    CovarianceParts,
    DrawnCovariance,
    PaperCovariance,
    TightCovariance,
)
from ntkgp.posterior.trained.plan import CovariancePlan
from ntkgp.posterior.trained.samples import draw_networks
from ntkgp.posterior.trained.training.accelerated import AcceleratedGD
from ntkgp.posterior.trained.training.adam import Adam
from ntkgp.posterior.trained.training.networks import NetworkPredictors, predictors_state, restore_predictors
from ntkgp.posterior.trained.training.trainer import Trainer
from ntkgp.problem.extend import extend_problem
from ntkgp.problem.problem import Problem
from ntkgp.problem.source import UserData
from ntkgp.problem.stored import problem_state, restore_head, restore_problem
from ntkgp.storage.state import State

T = TypeVar("T")
# Classes by their names in files.
ESTIMATES: dict[str, type[CovarianceEstimate]] = {
    "tight": TightCovariance, "drawn": DrawnCovariance, "paper": PaperCovariance,
}  # fmt: skip
SVDS: dict[str, type[SVDMethod]] = {kind.__name__: kind for kind in (DenseSVD, PowerIteration, RandomizedSVD, Lanczos)}
TRAINERS: dict[str, type[Trainer]] = {kind.__name__: kind for kind in (AcceleratedGD, Adam)}
NO_TRAINER = (
    "this posterior has no trainer to continue with: its networks were trained elsewhere, or its trainer could not be saved"
)


@dataclass(frozen=True, repr=False)
class TrainedPosterior(Posterior):
    """A posterior that evaluates trained copies of the network for its mean and variance."""

    problem: Problem
    plan: CovariancePlan
    predictors: NetworkPredictors
    bracket: Head
    svd_method: SVDMethod | None = None  # for updates; None for networks trained elsewhere
    trainer: Trainer | None = None
    why: str = ""

    kind = "trained"

    @property
    def method_name(self) -> str:
        """The method and its size, in words."""
        return f"trained networks (1 mean, {self.plan.svd.rank} head, {self.plan.tail.shape[1]} tail)"

    @property
    def std_error(self) -> float | None:
        """√(1/2T) for T draws (:class:`DrawnCovariance`), apart from errors of the training; None for other estimates."""
        return (2 * self.plan.tail.shape[1]) ** -0.5 if self._drawn else None

    @property
    def _drawn(self) -> bool:
        return isinstance(self.plan.estimate, DrawnCovariance) and self.plan.tail.shape[1] > 0

    def mean(self, x: Tensor) -> Tensor:
        """The mean by one forward pass of the first trained copy."""
        answers = self.problem.answers
        change = self.predictors[:1](answers.checked(x))[:, 0].to(self.plan.svd.s.dtype)
        return answers.shaped(answers.mean_at(x) + change)

    @out_of_memory("pass fewer points of x at a time")
    def predict(self, x: Tensor, *, noise_var: float | Tensor | None = None) -> Prediction:
        """Mean and variance by 1 + K + T forward passes, and K Jacobian products for the bracket.

        The variance is clipped to the bracket, so training and Monte-Carlo errors cannot move it outside.
        """
        confidence = self.plan.estimate.confidence if self._drawn else 1.0
        return predict_chunks(self.problem, x, self._predict, noise_var, confidence=confidence)

    def _predict(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mean, parts = self._evaluate(x)
        rows = self.problem.operators.at(x)
        prior, mean = rows.diag(), self.problem.answers.mean_at(x) + mean
        lower = self.bracket.bracket.lower(rows.matmat(self.bracket.v), prior)
        upper = torch.maximum(self.plan.upper(rows.matmat(self.plan.svd.v), prior, self.bracket), lower)
        if not self._drawn:
            return mean, torch.clamp(prior - parts.explained_diag(), lower, upper), lower, upper
        head, tail = (part.square().sum(dim=1) for part in self.plan.drawn(rows, parts))
        variance = torch.clamp(head + tail, lower, upper)
        low, high = scaled(variance_interval(self.plan.tail.shape[1], self.plan.estimate.confidence), tail)
        lower = torch.maximum(lower, torch.minimum(head + low, upper))
        upper = torch.maximum(torch.minimum(upper, head + high), lower)
        return mean, torch.clamp(variance, lower, upper), lower, upper

    def sharpen(
        self,
        x: Tensor,
        *,
        rtol: float = 0.01,
        noise_var: float | Tensor | None = None,
        max_iterations: int = 1000,
        progress: bool = False,
    ) -> Prediction:
        """Certify the variance of the linearised network at a few points; the mean is that of the trained network.

        Cost: 4·N·C·P operations per step and column (M·C of them); memory 8·P numbers per column solved together (1 GiB).
        """
        check_sharpening(rtol, max_iterations)
        operators, head = self.problem.operators, self.bracket
        system = NormalSystem(operators.normal, head.precondition, error=head.error)
        before = self.predict(x, noise_var=noise_var)
        return Sharpening(self.problem, head, system, rtol, max_iterations, progress).of(before, x)

    @out_of_memory("pass fewer points of x at a time")
    def covariance(self, x: Tensor) -> Float[Tensor, "MC MC"]:
        """The joint covariance estimate, without the negative part that training and Monte-Carlo errors may cause."""
        if not self._drawn:
            return self.problem.answers.positive(self.raw_covariance(x))
        parts, rows = self._evaluate(self.problem.answers.checked(x))[1], self.problem.operators.at(x)
        spread = torch.cat(self.plan.drawn(rows, parts), dim=1)
        return self.problem.answers.cast(spread @ spread.T)

    def raw_covariance(self, x: Tensor) -> Float[Tensor, "MC MC"]:
        """J′J′ᵀ − P W Pᵀ − P′P′ᵀ/T without clipping, as in the paper's Query-Posterior-Covariance."""
        rows = self.problem.operators.at(self.problem.answers.checked(x))
        return rows.gram() - self._evaluate(x)[1].explained()

    def _evaluate(self, x: Tensor) -> tuple[Float[Tensor, "MC"], CovarianceParts]:
        values = self.predictors(x).to(self.plan.svd.s.dtype)
        return values[:, 0], self.plan.parts(values[:, 1:])

    @out_of_memory("draw fewer functions at a time (count)")
    def sample(self, count: int, *, generator: torch.Generator | None = None) -> LinearSample:
        """Draws of the linearised network around the trained mean, with the exact posterior covariance.

        They have neither the Monte-Carlo error of ``covariance`` nor its error from a finite rank; their variance lies in the
        bracket of ``predict``. Cost: one dense factorisation in the first call, (N·C)³/3 operations, then as for
        :class:`Exact`; memory (N·C)² and (P + N·C)·count numbers.
        """
        drawn = self._zero_mean.sample(count, generator=generator)
        assert isinstance(drawn, LinearSample)
        return replace(drawn, centre=self.predictors[:1])

    @out_of_memory("draw fewer networks at a time (count)")
    def sample_networks(self, count: int, *, generator: torch.Generator | None = None, progress: bool = False) -> LinearSample:
        """`count` functions drawn by training `count` networks: sample, then optimise.

        A function is m + Jz plus the change of a copy of the network trained on r − Jz − ε, where z ~ N(0, I) are weights
        drawn from the prior and ε is a new draw of the observation noise. If the copies stay near their tangent (a small
        ``signal`` of the trainer ensures this), each function is a draw from the exact posterior, mean included, for any rank.
        With a trainer that does not scale its targets down (``Adam()``, ``AcceleratedGD(signal=1.0)``), the functions are the
        Bayesian deep ensemble of He, Lakshminarayanan & Teh (2020), whose networks may learn features; all networks share one
        anchor, and Jz carries the whole prior.

        Cost: `count` trainings with the trainer of the fit, as one batch; memory `count`·6·P numbers, then `count`·2·P. For
        very many draws, call it several times with the same generator.

        Args:
            count: number of functions.
            generator: random numbers for the draws; torch's global generator if None.
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
            raise ValueError(f"{NO_TRAINER}; call sample, which needs no training, or ntkgp.fit")
        return draw_networks(self.problem, self.plan.svd, self.trainer, count, generator, progress)

    @cached_property
    def _zero_mean(self) -> ExactPosterior:
        """The exact posterior of the same points with all residuals set to zero."""
        data = replace(self.problem.data, residual=torch.zeros_like(self.problem.data.residual))
        jacobian = self.problem.operators.jacobian
        return Exact(dtype=self.problem.network.dtype).fit(self.problem.with_data(data, known_rows=jacobian))

    def update(
        self,
        x: UserData,
        y: Tensor | None = None,
        *,
        noise_var: float | Tensor | None = None,
        generator: torch.Generator | None = None,
        progress: bool = False,
    ) -> "TrainedPosterior":
        """The posterior with more data: the copies continue training on their new shifted targets.

        The singular vectors are computed again. The answer of a copy is linear in its target while the copy is near its
        tangent. So each copy starts from the linear combination of old copies that best matches its new target. Rank and tail
        size stay the same; the tail reuses its old draws, with noise for the new points. Cost: the partial SVD and
        (1 + K + T) trainings, which are short if little has changed; memory as in :class:`TrainedNetworks`.
        """
        if self.svd_method is None or self.trainer is None:
            raise ValueError(f"{NO_TRAINER}; call ntkgp.plan_training or ntkgp.fit with all data")
        whole, _ = extend_problem(self.problem, x, y, noise_var)
        plan, std = self.plan.extended(whole, self.svd_method, generator), self.problem.data.noise_std.unsqueeze(1)
        job, before = plan.job(self.trainer), self.plan.job(self.trainer).targets / std
        mix = torch.linalg.pinv(before) @ (job.targets[: len(before)] / std)
        trained = self.predictors.trained
        start = mix.T @ (trained.deltas / trained.scale.unsqueeze(1)).to(mix)
        predictors = replace(job, start=start).train(progress)
        return TrainedPosterior(whole, plan, predictors, plan.bracket(), self.svd_method, self.trainer, self.why)

    def state(self) -> State:
        """Return all data of the posterior except the network; each copy as its displacement from the network."""
        names = [name for name, kind in ESTIMATES.items() if type(self.plan.estimate) is kind]
        if not names:
            raise ValueError(
                "only TightCovariance, DrawnCovariance and PaperCovariance can be saved, got "
                f"{type(self.plan.estimate).__name__}: files store no code"
            )
        # A user's own SVD method or trainer is code and is not saved, only its results.
        svd_kind, trainer_kind = _name_of(self.svd_method, SVDS), _name_of(self.trainer, TRAINERS)
        how = ({"svd_method": self.svd_method} if svd_kind else {}) | ({"trainer": self.trainer} if trainer_kind else {})
        own = State.of(
            estimate=names[0], svd=self.plan.svd, z=self.plan.z, noise=self.plan.noise, tail=self.plan.tail,
            bracket=self.bracket, svd_kind=svd_kind, trainer_kind=trainer_kind, why=self.why,
            confidence=self.plan.estimate.confidence, **how,
        )  # fmt: skip
        return problem_state(self.problem) | own | predictors_state(self.predictors)

    @classmethod
    def from_state(cls, state: State, module: nn.Module, prior_mean: MeanFunction | None) -> "TrainedPosterior":
        """Rebuild the posterior; pass `prior_mean` again if it was a function."""
        problem, double = restore_problem(state, module, prior_mean), torch.float64
        estimate = state.fact("estimate", str)
        if estimate not in ESTIMATES:
            raise ValueError(f"'estimate' must be one of {list(ESTIMATES)}, got {estimate!r}")
        svd = state.build(PartialSVD, "svd", double, u="NC K", s="K", v="P K", residuals="K")
        noise, z = state.tensor("noise", "NC T", double), state.tensor("z", "P Z", double)
        kind, confidence = ESTIMATES[estimate], 1.0 if state.older else state.fact("confidence", float)
        rule = DrawnCovariance(confidence) if kind is DrawnCovariance else kind()
        plan = CovariancePlan(problem, svd, rule, z, noise, state.tensor("tail", "NC T", double))
        predictors = restore_predictors(state, problem, "1+K+T")
        bracket = restore_head(state, "bracket", problem.network.dtype)
        svd_method, trainer = (
            _rebuilt(state, "svd_method", "svd_kind", SVDS),
            _rebuilt(state, "trainer", "trainer_kind", TRAINERS),
        )
        return cls(problem, plan, predictors, bracket, svd_method, trainer, why_of(state))


def _name_of(part: object, kinds: Mapping[str, type]) -> str | None:
    return next((name for name, kind in kinds.items() if type(part) is kind), None)


def _rebuilt(state: State, name: str, kind: str, kinds: Mapping[str, type[T]]) -> T | None:
    chosen = state.fact(kind, str, type(None))
    if chosen is not None and chosen not in kinds:
        raise ValueError(f"{kind!r} must be one of {list(kinds)}, got {chosen!r}")
    return None if chosen is None else state.build(kinds[chosen], name)
