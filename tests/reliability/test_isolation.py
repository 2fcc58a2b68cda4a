"""Fitting and asking leave the user's module and process alone, and nothing the user does later reaches a posterior."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

import ntkgp
from tests.support import modules
from tests.support.cases import NETWORKS, Case, by_name, every
from tests.support.helpers import METHODS, flat_answers
from tests.support.unchanged import unchanged

# The shape checker of these tests draws random numbers of its own.
pytestmark = pytest.mark.usefixtures("unchecked")

TRIED = ["exact", "trained"]
each_method = pytest.mark.parametrize("method", TRIED)
# By factors, by autodiff, by both; buffers; token inputs.
KINDS = ["paper mlp", "trigonometric inputs", "cnn", "attention", "batch norm in eval mode", "tied embedding"]
each_kind = pytest.mark.parametrize("name", KINDS)


def fit(case: Case, method: str, module: nn.Module, x: Tensor, y: Tensor) -> ntkgp.posterior.Posterior:
    return ntkgp.fit(
        module, x, y, noise_var=0.1, method=METHODS[method], prior_mean=ntkgp.network_mean,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip


@every(NETWORKS)
def test_fit_and_predict_change_nothing(case: Case):
    module, x, y = case.module(), case.x.clone(), case.y.clone()
    with unchanged(module):
        for method in TRIED:
            flat_answers(fit(case, method, module, x, y), case.query, draws=0)
        ntkgp.kernel(module, x, case.query)
        ntkgp.partial_svd(module, x, 2, svd=ntkgp.linalg.Lanczos(), generator=torch.Generator().manual_seed(0))
    assert torch.equal(x, case.x)
    assert torch.equal(y, case.y)
    assert not flat_answers(fit(case, "exact", module, x, y), case.query, draws=0).requires_grad


def test_a_module_in_training_mode_stays_there():
    case, module = by_name("standard parametrisation"), by_name("standard parametrisation").module().train()
    with unchanged(module):
        posterior = fit(case, "exact", module, case.x, case.y)
        posterior.predict(case.query)
    assert module.training


def test_gradients_in_progress_survive():
    """Fitting in the middle of a training step, between backward and step."""
    case, module = by_name("standard parametrisation"), by_name("standard parametrisation").module()
    module(case.x).sum().backward()
    before = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    fit(case, "trained", module, case.x, case.y)
    after = [p.grad for p in module.parameters() if p.grad is not None]
    assert len(before) == len(after) > 0
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def train_on(module: nn.Module) -> None:
    with torch.no_grad():
        for p in module.parameters():
            p.add_(1.0)
        for b in module.buffers():
            b.add_(1)


INTERFERENCE: dict[str, Callable[[nn.Module, Tensor, Tensor], object]] = {
    "training the module": lambda module, x, y: train_on(module),
    "putting it into training mode": lambda module, x, y: module.train(),
    "changing its dtype": lambda module, x, y: module.half(),
    "freezing it": lambda module, x, y: module.requires_grad_(False),
    "overwriting x": lambda module, x, y: x.zero_(),
    "overwriting y": lambda module, x, y: y.zero_(),
}


@each_method
@each_kind
def test_nothing_done_later_reaches_the_posterior(method: str, name: str):
    case = by_name(name)
    module, x, y = case.module(), case.x.clone(), case.y.clone()
    posterior = fit(case, method, module, x, y)
    before, reached = flat_answers(posterior, case.query, draws=0), []
    for deed, interfere in INTERFERENCE.items():
        interfere(module, x, y)
        if not torch.equal(flat_answers(posterior, case.query, draws=0), before):
            reached.append(deed)
    assert reached == []


@each_kind
def test_overwriting_x_between_plan_and_posterior(name: str):
    case = by_name(name)
    module, x = case.module(), case.x.clone()
    plan = ntkgp.plan_training(module, x, case.y, noise_var=0.1, rank=2)
    expected = plan.posterior([module] * 3).predict(case.query).lower
    again = ntkgp.plan_training(module, x, case.y, noise_var=0.1, rank=2)
    x.zero_()
    assert torch.equal(again.posterior([module] * 3).predict(case.query).lower, expected)


@pytest.mark.filterwarnings("ignore:.*networks stopped after 5 steps")
@pytest.mark.parametrize("trainer", [ntkgp.AcceleratedGD(), ntkgp.Adam(lr=1e-2, max_steps=5)], ids=["accelerated", "adam"])
def test_a_module_as_prior_mean_is_left_alone(trainer: ntkgp.AcceleratedGD | ntkgp.Adam):
    case, mean = by_name("paper mlp"), modules.standard().double()
    with unchanged(mean):
        method = ntkgp.TrainedNetworks(rank=1, trainer=trainer)
        p = ntkgp.fit(case.module(), case.x, case.y, noise_var=0.1, prior_mean=mean, method=method).predict(case.query)
    assert not p.mean.requires_grad


@each_method
@each_kind
def test_eight_threads_get_what_one_gets(method: str, name: str):
    case = by_name(name)
    posterior = fit(case, method, case.module(), case.x, case.y)
    points = [case.query[k % 4 :] for k in range(8)]
    serial = [flat_answers(posterior, x, draws=0) for x in points]
    # Worker threads start with torch's own number of threads, which splits sums in another way.
    with ThreadPoolExecutor(8, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        parallel = list(pool.map(lambda x: flat_answers(posterior, x, draws=0), points))
    assert all(torch.equal(a, b) for a, b in zip(serial, parallel, strict=True))


def test_threads_with_posteriors_of_their_own_leave_the_switches_alone():
    """The attention switches are the process's: threads that turn them at the same time must turn them back."""
    case = by_name("attention")
    posteriors = [fit(case, "exact", case.module(), case.x, case.y) for _ in range(4)]
    barrier = threading.Barrier(4)

    def ask(posterior: ntkgp.posterior.Posterior) -> None:
        barrier.wait()
        for _ in range(10):
            posterior.predict(case.query)

    with unchanged(), ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, posteriors))


def test_the_global_generator_is_used_only_where_none_is_given():
    """Random tails come from the global generator by default, and from the given one alone when there is one."""
    case = by_name("paper mlp")
    method = ntkgp.TrainedNetworks(rank=1, tail=2, trainer=ntkgp.AcceleratedGD(tol=0.5))
    results = []
    for seed in (1, 1, 2):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            results.append(case.fit(method).predict(case.query).variance)
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
