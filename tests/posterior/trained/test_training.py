"""Real networks trained by gradient descent, against the analytic answers they should reach."""

import math
import time
from dataclasses import replace

import pytest
import torch

import ntkgp
from ntkgp.posterior.trained.posterior import TrainedPosterior
from ntkgp.posterior.trained.training.networks import NetworkPredictors, TrainingJob
from ntkgp.posterior.trained.training.task import TrainedWeights
from ntkgp.posterior.trained.training.trainer import Trainer
from tests.support import analytic
from tests.support.cases import Case, by_name, every, reference
from tests.support.oracle import error

CASE = Case(
    name="width 64",
    build=lambda: ntkgp.mlp(1, width=64, generator=torch.Generator().manual_seed(0)),
    x=torch.linspace(-1, 1, 8).double().unsqueeze(1),
    y=torch.linspace(-1, 1, 8).double().mul(3).sin(),
    query=torch.linspace(-2, 2, 21).double().unsqueeze(1),
    noise_var=0.05,
)
GOLD = ntkgp.AcceleratedGD(tol=1e-5, signal=1e-6)


def fitted(case: Case, trainer: Trainer, rank: int = 3) -> TrainedPosterior:
    posterior = case.fit(ntkgp.TrainedNetworks(rank=rank, trainer=trainer), generator=torch.Generator().manual_seed(0))
    assert isinstance(posterior, TrainedPosterior)
    return posterior


def trained_weights(posterior: TrainedPosterior) -> TrainedWeights:
    assert isinstance(posterior.predictors, NetworkPredictors)
    return posterior.predictors.trained


def errors(case: Case, trainer: Trainer) -> tuple[float, float]:
    return errors_of(case, fitted(case, trainer))


def solved_values(posterior: TrainedPosterior, x: torch.Tensor) -> torch.Tensor:
    """What the trained copies should answer: first the mean's, then the head's, then the tail's."""
    plan, std = posterior.plan, posterior.plan.problem.data.noise_std.unsqueeze(1)
    targets = torch.cat([plan.problem.data.residual.unsqueeze(1), plan.targets], dim=1)
    return analytic.analytic_predictors(plan.problem, targets / std)(x)


def errors_of(case: Case, posterior: TrainedPosterior) -> tuple[float, float]:
    """Relative errors of mean and covariance against the predictors that need no training."""
    plan, values = posterior.plan, solved_values(posterior, case.query)
    mean = plan.problem.answers.mean_at(case.query) + values[:, 0]
    covariance = analytic.prior(plan, case.query) - plan.parts(values[:, 1:]).explained()
    got = posterior.predict(case.query).mean.flatten()
    return error(got, mean), error(posterior.raw_covariance(case.query), covariance)


def test_default_trainer_reaches_the_analytic_answer():
    mean, covariance = errors(CASE, ntkgp.AcceleratedGD())
    assert mean <= 5e-3
    assert covariance <= 5e-3


def test_more_accuracy_on_request():
    mean, covariance = errors(CASE, GOLD)
    assert mean <= 1e-4
    assert covariance <= 1e-5


def test_a_smaller_signal_is_closer_to_the_tangent():
    means, covariances = zip(
        *[errors(CASE, ntkgp.AcceleratedGD(tol=1e-4, signal=s)) for s in (0.02, 0.002, 0.0002)], strict=True
    )
    assert means[0] > 3 * means[1] > 9 * means[2]
    assert covariances[0] > 3 * covariances[1] > 9 * covariances[2]


KINDS = [
    "noise per point", "noise per output", "prior variance", "prior variance per layer", "two outputs", "cnn", "shared weight",
    "transformer layer", "layer norm", "frozen parameters", "in-place activations", "weight used directly",
    "network as prior mean", "function as prior mean", "output squeezed", "more points than parameters", "duplicated points",
]  # fmt: skip


@every([by_name(name) for name in KINDS])
def test_networks_noise_and_priors_of_all_kinds(case: Case):
    posterior = fitted(case, ntkgp.AcceleratedGD(tol=1e-3, signal=1e-5))
    mean, covariance = errors_of(case, posterior)
    assert mean <= 5e-3
    assert covariance <= 5e-3
    assert error(posterior.predict(case.query).mean.flatten(), reference(case).mean) <= 5e-3


def test_the_metric_saves_steps_and_changes_nothing_else():
    case = by_name("trigonometric inputs")
    quick, plain = (fitted(case, ntkgp.AcceleratedGD(tol=1e-4, signal=1e-5, metric=m), rank=8) for m in (True, False))
    assert max(trained_weights(quick).steps) < 0.5 * max(trained_weights(plain).steps)
    assert error(quick.predict(case.query).mean, plain.predict(case.query).mean) <= 1e-3


def test_a_poor_svd_slows_training_but_does_not_spoil_it():
    """A random sketch for a head: the metric is wrong, the targets are what they are, and M t is found all the same."""
    case = by_name("trigonometric inputs")
    method = ntkgp.TrainedNetworks(
        rank=4,
        svd=ntkgp.linalg.RandomizedSVD(oversample=0, power=0, tol=None),
        trainer=ntkgp.AcceleratedGD(tol=1e-3, signal=1e-5),
    )
    posterior = case.fit(method, generator=torch.Generator().manual_seed(0))
    assert isinstance(posterior, TrainedPosterior)
    assert not posterior.plan.svd.converged
    assert errors_of(case, posterior)[0] <= 5e-3
    head, expected = (values[:, 1:] for values in (posterior.predictors(case.query), solved_values(posterior, case.query)))
    assert error(head, expected) <= 5e-3


def test_each_copy_stops_by_itself_and_says_how_good_it_is():
    trainer = ntkgp.AcceleratedGD(tol=1e-4)
    trained = trained_weights(fitted(CASE, trainer))
    assert trained.converged == [True] * 4
    assert max(trained.accuracy) <= trainer.tol
    assert trained.steps[0] > max(trained.steps[1:])  # y is harder than the top singular vectors
    assert len(trained.losses) == math.ceil(max(trained.steps) / 10)
    assert trained.losses[-1][0] < 0.5 * trained.losses[0][0]
    assert trained.seconds > 0


def test_too_few_steps_are_announced():
    with pytest.warns(ntkgp.NumericalWarning, match=r"1 of 4 networks stopped after 20 steps at a relative accuracy of .*e-"):
        trained = trained_weights(fitted(CASE, ntkgp.AcceleratedGD(max_steps=20)))
    assert trained.converged == [False, True, True, True]
    assert trained.steps[0] == 20
    assert trained.accuracy[0] > 5e-3


def test_the_certificate_bounds_the_error_in_the_energy_norm():
    """sqrt(eᵀ(JᵀJ + σ²)e) of the weights' error, relative to the energy of the solution, is what accuracy promises."""
    posterior = fitted(CASE, ntkgp.AcceleratedGD(tol=0.05, signal=1e-6))
    problem, trained = posterior.plan.problem, trained_weights(posterior)
    exact = analytic.analytic_predictors(problem, (problem.data.residual / problem.data.noise_std).unsqueeze(1)).weights[:, 0]
    difference = trained.deltas[0] / trained.scale[0] - exact
    jacobian = problem.operators.jacobian

    def energy(w: torch.Tensor) -> float:
        return float(jacobian.matmat(w.unsqueeze(1)).square().sum() + problem.data.noise_scale**2 * w.square().sum())

    assert 1e-6 < math.sqrt(energy(difference) / energy(exact)) <= trained.accuracy[0] * 1.05


def test_targets_of_zero_are_no_trouble():
    """y equal to the prior mean leaves nothing to learn."""
    posterior = fitted(replace(CASE, y=torch.zeros(8).double()), ntkgp.AcceleratedGD(max_steps=200))
    trained = trained_weights(posterior)
    assert all(trained.converged)
    assert max(trained.steps) <= 10
    assert posterior.predict(CASE.query).mean.abs().max() <= 1e-9


@pytest.mark.parametrize("factor", [1e-9, 1e3, 1e6])
def test_the_units_of_y_do_not_matter(factor: float):
    """Targets are scaled to the network before training: no y is too large for its tangent or too small for rounding."""
    plain = fitted(CASE, GOLD).predict(CASE.query).mean
    scaled = fitted(replace(CASE, y=factor * CASE.y), GOLD).predict(CASE.query).mean
    assert error(scaled / factor, plain) <= 1e-6


def test_a_large_signal_does_not_blow_up():
    """Far from its tangent the step from the SVD is too long; the trainer shortens it and never ends above where it began."""
    wild = ntkgp.AcceleratedGD(signal=30.0, max_steps=200)
    with pytest.warns(ntkgp.NumericalWarning, match="use a smaller signal"):
        posterior = fitted(CASE, wild)
    trained = trained_weights(posterior)
    assert all(math.isfinite(value) for row in trained.losses for value in row)
    assert all(last <= 1.01 * first for first, last in zip(trained.losses[0], trained.losses[-1], strict=True))
    p = posterior.predict(CASE.query)
    assert bool(torch.isfinite(p.mean).all())
    assert bool(((p.lower <= p.variance) & (p.variance <= p.upper)).all())


def test_float32_training():
    trainer = ntkgp.AcceleratedGD(dtype=torch.float32)
    posterior = fitted(CASE, trainer)
    assert trained_weights(posterior).deltas.dtype == torch.float32
    mean, covariance = errors(CASE, trainer)
    in_float64 = errors(CASE, ntkgp.AcceleratedGD(signal=1e-2))  # the signal float32 takes
    assert mean <= in_float64[0] + 5e-3
    assert covariance <= in_float64[1] + 5e-3


@pytest.mark.parametrize(
    "trainer",
    [ntkgp.AcceleratedGD(tol=1e-9, max_steps=20), ntkgp.Adam(1e-2, max_steps=20, dtype=torch.float64)],
    ids=["accelerated", "adam"],
)
@pytest.mark.filterwarnings("ignore:.*networks stopped after 20 steps")
def test_stacked_training_equals_separate_training(trainer: Trainer):
    plan = analytic.plan(by_name("two outputs"), ntkgp.posterior.TightCovariance(), 3)
    columns = torch.cat([plan.problem.data.residual.unsqueeze(1), plan.targets], dim=1)
    roles = ["mean", "covariance", "covariance", "covariance"]
    query = by_name("two outputs").query
    together = TrainingJob(plan.problem, columns, roles, plan.svd, trainer).train()(query)
    for k, role in enumerate(roles):
        alone = TrainingJob(plan.problem, columns[:, k : k + 1], [role], plan.svd, trainer).train()(query)
        assert error(together[:, k : k + 1], alone) <= 1e-8


def test_progress_is_shown_on_request_only(capsys: pytest.CaptureFixture[str]):
    CASE.fit(ntkgp.TrainedNetworks(rank=1))
    assert capsys.readouterr().err == ""
    CASE.fit(ntkgp.TrainedNetworks(rank=1), progress=True)
    assert "training 2 networks" in capsys.readouterr().err


@pytest.mark.parametrize("trainer", [ntkgp.AcceleratedGD(tol=1e-2), ntkgp.Adam(lr=1e-2, patience=5, max_steps=60)])
def test_a_training_can_be_stopped_looked_at_and_resumed(trainer: Trainer):
    plan = fitted(CASE, ntkgp.AcceleratedGD(), rank=2).plan
    task = TrainingJob(plan.problem, plan.targets, ["covariance"] * 2, plan.svd, trainer).task()
    straight = trainer.train(task)
    steps, seen = trainer.steps(task), []
    while True:
        try:
            step = next(steps)
        except StopIteration as end:
            broken = end.value
            break
        seen.append(step.count)
        now = step.weights()
        now.deltas.mul_(7.0)  # a copy: what is done to it does not reach the training
        assert now.deltas.shape == straight.deltas.shape
        assert len(now.losses) == 1 + (step.count - 1) // 10
    assert seen == list(range(1, len(seen) + 1))
    assert torch.equal(broken.deltas, straight.deltas)
    assert (broken.steps, broken.converged, broken.losses) == (straight.steps, straight.converged, straight.losses)
    assert broken.seconds > 0


def test_the_time_between_steps_is_not_the_training_s():
    plan = fitted(CASE, ntkgp.AcceleratedGD(), rank=1).plan
    trainer = ntkgp.AcceleratedGD(tol=1e-9)
    steps = trainer.steps(TrainingJob(plan.problem, plan.targets, ["covariance"], plan.svd, trainer).task())
    start = time.perf_counter()
    next(steps)
    time.sleep(1.0)
    whole = next(steps).weights().seconds
    assert whole < time.perf_counter() - start - 0.9
