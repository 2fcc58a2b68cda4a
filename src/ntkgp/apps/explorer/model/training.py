"""Train real networks while the user watches: the library's trainers, run in short time slices."""

import time
import warnings
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.errors import NumericalWarning
from ntkgp.apps.explorer.model.compute import GRID, Answer, data, network, queries
from ntkgp.apps.explorer.model.state import State, StateError
from ntkgp.linalg.svd.dense import DenseSVD
from ntkgp.posterior.trained.covariance import TightCovariance
from ntkgp.posterior.trained.plan import plan_covariance
from ntkgp.posterior.trained.training.accelerated import AcceleratedGD
from ntkgp.posterior.trained.training.adam import Adam
from ntkgp.posterior.trained.training.networks import NetworkPredictors
from ntkgp.posterior.trained.training.task import TrainedWeights
from ntkgp.posterior.trained.training.trainer import Trainer, TrainingStep
from ntkgp.problem.build import build_problem
from ntkgp.problem.source import Source

MAX_STEPS = 20_000  # training steps per network


@dataclass(frozen=True)
class Trained:
    """Predictions of the networks at the queries after some steps, and their errors against the analytic answer."""

    step: int
    seconds: float  # training time so far
    mean: Float[Tensor, "M"]
    variance: Float[Tensor, "M"]
    predictors: Float[Tensor, "M K"]
    mean_error: float  # relative L2 on the grid, against the exact mean
    std_error: float  # the same for the std, against the analytic std for the same K and T


class Training:
    """Trains 1 + K + T copies of the network in time slices: `advance` runs one slice, `close` ends the training.

    Args:
        state: the points, the network and the trainer.
        answer: the analytic answer for the same state; provides the tail's targets, the prior and the reference for errors.

    Example:
        >>> from ntkgp.apps.explorer.model.compute import answer
        >>> state = State(points=((-1.0, 0.5), (1.0, -0.5)), width=32, rank=2)
        >>> training = Training(state, answer(state))
        >>> while not training.finished:
        ...     training.advance(seconds=1.0)
        >>> now = training.look()
        >>> now.mean_error < 0.02, now.std_error < 0.02
        (True, True)
    """

    def __init__(self, state: State, answer: Answer):
        if not state.points:
            raise StateError("there is nothing to train on: add a point first")
        if state.infinite:
            raise StateError("a network of infinite width has no weights to train: choose a finite width")
        x, y = data(state)
        problem = build_problem(network(state), Source(x, y, state.noise_var), dtype=torch.float64)
        found = plan_covariance(problem, answer.rank, 0, DenseSVD(), TightCovariance())
        # The noise of the tail is needed only for posterior updates, which the page does not use.
        self.plan = replace(found, tail=answer.tail, noise=torch.zeros_like(answer.tail))
        trainer = _trainer(state)
        self.task = self.plan.job(trainer).task()
        # The sign of an eigenvector is arbitrary: `look` gives the trained predictors the signs of the analytic ones.
        analytic = answer.predictors[:GRID]
        self._queries, self._answer, self._analytic = queries(state), answer, analytic
        self._steps = trainer.steps(self.task)
        self._last: TrainingStep | None = None
        self.finished, self.note = False, ""

    @property
    def networks(self) -> int:
        """Number of networks, 1 + K + T."""
        return len(self.task.targets)

    def advance(self, seconds: float) -> None:
        """Train for about this time: at least one step, unless training has finished."""
        stop = time.perf_counter() + seconds
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", NumericalWarning)
            while not self.finished:
                try:
                    self._last = next(self._steps)
                except StopIteration as end:
                    self.finished, self._last = True, _end(end.value)
                if time.perf_counter() >= stop:
                    break
        self.note = "; ".join(str(warning.message) for warning in caught)

    def ask(self, state: State, answer: Answer) -> None:
        """Use a new probe from now on; the rest of the state must be the same."""
        self._queries, self._answer = queries(state), answer

    def look(self) -> Trained:
        """The current predictions of the networks. Cost: 1 + K + T forward passes over the queries."""
        if self._last is None:
            raise ValueError("no step was taken yet: call advance first")
        weights, answer, rank = self._last.weights(), self._answer, self.plan.svd.rank
        values = NetworkPredictors(self.task.copies, weights)(self._queries).double()
        mean, parts = values[:, 0], self.plan.parts(values[:, 1:])
        # Clamped at the lower bound like the analytic variance, but not at the upper one: that would hide unfinished training.
        variance = torch.maximum(answer.prior - parts.explained_diag(), answer.lower)
        head = values[:, 1 : rank + 1]
        signs = torch.where((head[:GRID] * self._analytic).sum(dim=0) < 0, -1.0, 1.0)
        return Trained(
            self._last.count, weights.seconds, mean, variance, head * signs, _error(mean, answer.mean),
            _error(variance.sqrt(), answer.variance.sqrt()),
        )  # fmt: skip

    def close(self) -> None:
        """End the training; it cannot be resumed."""
        self._steps.close()
        self.finished = True


def _trainer(state: State) -> Trainer:
    if state.trainer == "adam":
        return Adam(signal=state.signal, max_steps=MAX_STEPS)
    return AcceleratedGD(signal=state.signal, max_steps=MAX_STEPS)


def _end(weights: TrainedWeights) -> TrainingStep:
    """The final weights as a last training step."""
    return TrainingStep(max(weights.steps), {}, lambda: weights)


def _error(got: Tensor, expected: Tensor) -> float:
    return float((got - expected)[:GRID].norm() / expected[:GRID].norm().clamp_min(1e-300))
