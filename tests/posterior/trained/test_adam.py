"""The paper's trainer: patience, best weights, two learning rates."""

import pytest
import torch
from torch import Tensor

import ntkgp
from ntkgp.posterior.trained.training.networks import TrainingJob
from ntkgp.posterior.trained.training.task import Copies, Metric, TrainedWeights, TrainingTask
from ntkgp.posterior.trained.training.trainer import Trainer
from tests.support import analytic
from tests.support.cases import by_name

pytestmark = pytest.mark.filterwarnings("ignore:.*networks stopped after")
ROLES = ["covariance", "mean", "covariance"]  # in any order


def task(dtype: torch.dtype = torch.float64) -> TrainingTask:
    plan = analytic.plan(by_name("standard parametrisation"), ntkgp.posterior.TightCovariance(), 2)
    problem, svd = plan.problem, plan.svd
    targets = torch.cat([plan.targets[:, :1], problem.data.residual.unsqueeze(1), plan.targets[:, 1:]], dim=1)
    network = problem.network.to(dtype)
    return TrainingTask(
        copies=Copies(network, problem.operators.tangent.layout, problem.operators.tangent.scales),
        x=problem.data.x.to(dtype),
        targets=targets.T.unsqueeze(2).to(dtype),
        weights=problem.data.loss_weights.to(dtype),
        beta=problem.data.beta,
        metric=Metric(svd.v.to(dtype), svd.s.to(dtype), svd.residuals.to(dtype)),
        amplitude=1.0,
        roles=ROLES,
    )


def by_hand(t: TrainingTask, rates: list[float], steps: int) -> tuple[Tensor, Tensor]:
    """One ordinary optimiser per copy: the weights after so many steps, and the losses before each of them."""
    rows, losses = [], torch.zeros(steps, len(rates), dtype=torch.float64)
    for k, rate in enumerate(rates):
        delta = t.zeros()[k : k + 1].requires_grad_()
        optimiser = torch.optim.Adam([delta], lr=rate)
        one = t.subset(torch.arange(len(rates)) == k)
        for step in range(steps):
            optimiser.zero_grad()
            loss = one.loss(delta).sum()
            losses[step, k] = loss.detach()
            loss.backward()
            optimiser.step()
        rows.append(delta.detach())
    return torch.cat(rows), losses


def train(trainer: Trainer, dtype: torch.dtype = torch.float64) -> TrainedWeights:
    return trainer.train(task(dtype))


@pytest.mark.parametrize(("covariance_lr", "expected"), [(None, 2e-4), (3e-4, 3e-4)], ids=["half", "given"])
def test_two_learning_rates(covariance_lr: float | None, expected: float):
    """The covariance predictors take half the rate of the mean's when not told."""
    trained = train(ntkgp.Adam(lr=4e-4, covariance_lr=covariance_lr, max_steps=31, dtype=torch.float64))
    # The weights kept are the best ones seen, here those before the last step: 30 steps have been taken.
    hand, _ = by_hand(task(), [expected, 4e-4, expected], 30)
    torch.testing.assert_close(trained.deltas, hand, rtol=1e-8, atol=1e-12)


def test_stops_by_patience_and_keeps_the_best_weights():
    """A rate so large that the loss goes up and down: what is kept is the best, not the last.

    Few steps: such a rate magnifies rounding, and after hundreds of steps another processor takes other ones.
    """
    trained = train(ntkgp.Adam(lr=0.1, patience=5, max_steps=1000, dtype=torch.float64))
    assert trained.converged == [True] * 3
    assert len(set(trained.steps)) > 1  # each copy has its own patience
    _, losses = by_hand(task(), [0.05, 0.1, 0.05], max(trained.steps))
    for k, steps in enumerate(trained.steps):
        seen = losses[:steps, k]
        assert steps == int(seen.argmin()) + 1 + 5
        assert seen.min() < seen[-1]
        assert trained.accuracy[k] == pytest.approx(float(seen.min()), rel=1e-6)
    torch.testing.assert_close(task().loss(trained.deltas), torch.tensor(trained.accuracy).double(), rtol=1e-6, atol=0)


def test_patience_counts_from_the_last_improvement():
    """No learning at all: the first epoch is the best, and `patience` more are waited for."""
    trained = train(ntkgp.Adam(lr=1e-30, patience=7, max_steps=100, dtype=torch.float64))
    assert trained.steps == [8, 8, 8]
    assert trained.deltas.abs().max() <= 1e-28


def test_running_out_of_steps_is_on_record():
    with pytest.warns(ntkgp.NumericalWarning, match="3 of 3 networks stopped after 20 steps"):
        trained = train(ntkgp.Adam(lr=1e-3, patience=500, max_steps=20))
    assert trained.converged == [False] * 3
    assert trained.steps == [20] * 3


def test_float32_is_the_papers_dtype():
    assert train(ntkgp.Adam(lr=1e-3, max_steps=5), torch.float32).deltas.dtype == torch.float32


def test_the_papers_settings_are_the_defaults():
    adam = ntkgp.Adam()
    assert (adam.lr, adam.covariance_lr, adam.patience, adam.signal) == (1e-4, None, 500, 1.0)


def test_reduces_the_loss_of_every_copy():
    trained = train(ntkgp.Adam(lr=1e-2, patience=100, max_steps=600, signal=0.1, dtype=torch.float64))
    scaled = task().scaled(torch.full((3,), 0.1).double())
    before, after = scaled.loss(scaled.zeros()), scaled.loss(trained.deltas)
    assert bool((after < 0.7 * before).all())
    assert trained.scale.tolist() == [0.1] * 3


def test_only_covariance_predictors():
    """Algorithm 2 alone trains no mean."""
    plan = analytic.plan(by_name("standard parametrisation"), ntkgp.posterior.TightCovariance(), 2)
    job = TrainingJob(plan.problem, plan.targets, ["covariance"] * 2, plan.svd, ntkgp.Adam(max_steps=3))
    predictors = job.train()
    assert predictors(by_name("standard parametrisation").query).shape == (9, 2)
