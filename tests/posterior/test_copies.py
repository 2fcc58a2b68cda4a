"""Copies and pickles of posteriors and of functions drawn from them answer bit for bit like the original."""

import copy
import multiprocessing
import pickle
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ntkgp
from ntkgp.posterior.trained.covariance import CovarianceEstimate
from ntkgp.posterior.trained.posterior import TrainedPosterior
from tests.support.cases import Case, by_name, every
from tests.support.files import assert_same_bits, fitted
from tests.support.helpers import METHODS, answers, each_method, seeded
from tests.support.modules import Recurrent

T = TypeVar("T")
# Functions inside of functions make the shape checker of these tests slow, and what it decorates cannot be pickled.
pytestmark = pytest.mark.usefixtures("unchecked")

CASES = [by_name(name) for name in (
    "noise per point, two outputs", "one output as a column", "float32, two outputs", "weight used directly",
    "frozen parameters", "batch norm in eval mode", "prior variance per layer", "network as prior mean", "tied embedding",
    "shared weight", "recurrent",
)]  # fmt: skip


def pickled(original: T) -> T:
    return pickle.loads(pickle.dumps(original))


WAYS: dict[str, Callable[[Any], Any]] = {"deep copy": copy.deepcopy, "pickle": pickled}
each_way = pytest.mark.parametrize("way", WAYS)


def squares(x: Tensor) -> Tensor:
    """A prior mean that pickle finds by its name."""
    return x.square().sum(dim=1)


@every(CASES)
@each_method
@each_way
def test_posteriors(case: Case, method: str, way: str, path: Path):
    original = fitted(case, method)
    other = WAYS[way](original)
    assert other is not original
    assert_same_bits(original, other, case.query)
    # Saved and loaded like the original: with the module of the user, in its own dtype.
    written = []
    for posterior in (original, other):
        posterior.save(path)
        written.append(path.read_bytes())
        assert_same_bits(original, ntkgp.load(path, case.module()), case.query)
    assert written[0] == written[1]


@each_method
@each_way
def test_posteriors_that_have_seen_more(method: str, way: str):
    """And the copy can see still more, without a trace in the original."""
    case = by_name("two outputs")
    original = fitted(case, method)
    for k in range(3):
        original = original.update(case.query[:2] + k, case.y[:2], generator=seeded(k))
    before, other = answers(original, case.query), WAYS[way](original)
    assert_same_bits(original, other, case.query)
    more = [posterior.update(case.x[:2] + 5, case.y[:2], generator=seeded()) for posterior in (other, original)]
    assert_same_bits(*more, case.query)  # pyright: ignore[reportCallIssue]
    for posterior in (original, other):
        assert all(torch.equal(a, b) for a, b in zip(before, answers(posterior, case.query), strict=True))


@pytest.mark.parametrize("method", [
    ntkgp.Exact(dtype=torch.float32), ntkgp.LowRank(rank=3, dtype=torch.float64), ntkgp.LowRank(rtol=0.5),
    ntkgp.TrainedNetworks(rank=2, trainer=ntkgp.Adam(lr=1.0, patience=1), covariance=ntkgp.posterior.PaperCovariance()),
], ids=["exact in float32", "low rank in float64", "low rank by rtol", "the paper's training"])  # fmt: skip
@pytest.mark.parametrize("name", ["float32", "paper mlp", "batch norm in eval mode"])
@each_way
def test_networks_that_compute_in_another_dtype(method: Any, name: str, way: str, path: Path):
    case = by_name(name)
    original = case.fit(method, generator=seeded())
    other = WAYS[way](original)
    assert_same_bits(original, other, case.query)
    other.save(path)
    assert_same_bits(original, ntkgp.load(path, case.module()), case.query)


@each_method
@each_way
def test_prior_means_that_are_functions(method: str, way: str):
    case = by_name("paper mlp")
    for mean in (squares, Recurrent().double().eval()):
        x, query = (case.x, case.query) if mean is squares else (torch.randn(8, 4, 3).double(), torch.randn(5, 4, 3).double())
        module = case.module() if mean is squares else Recurrent().double()
        y = torch.randn(len(x), 2).double() if mean is not squares else case.y
        original = ntkgp.fit(module, x, y, noise_var=0.1, prior_mean=mean, method=METHODS[method], generator=seeded())
        assert_same_bits(original, WAYS[way](original), query)


@each_method
def test_what_cannot_be_pickled(method: str, path: Path):
    """Pickle names the part of the user's that it cannot find by its name; deep copies and files do without the name."""
    case = by_name("function as prior mean")
    original = fitted(case, method)
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(original)
    assert_same_bits(original, copy.deepcopy(original), case.query)


@each_method
def test_a_plain_copy_is_the_posterior_itself(method: str):
    """It never changes, like a tuple."""
    original = fitted(by_name("paper mlp"), method)
    assert copy.copy(original) is original
    drawn = original.sample(2)
    assert copy.copy(drawn) is drawn


@each_method
@each_way
def test_a_copy_owns_its_memory(method: str, way: str):
    case = by_name("two outputs")
    original = fitted(case, method)
    expected, other = answers(original, case.query, draws=0), WAYS[way](original)
    with torch.no_grad():
        for tensor in (*original.problem.network.module.parameters(), *original.state().tensors.values()):
            tensor.zero_()
    assert all(torch.equal(a, b) for a, b in zip(expected, answers(other, case.query, draws=0), strict=True))


class Batches:
    """Reads from something that can be neither copied nor pickled."""

    def __init__(self, case: Case):
        self.lock, self.case = threading.Lock(), case

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield self.case.x[:5], self.case.y[:5]
        yield self.case.x[5:], self.case.y[5:]


def test_batches():
    """A deep copy reads the same batches; a pickle leaves them out, as files do."""
    case = by_name("two outputs")
    for source in (Batches(case), DataLoader(TensorDataset(case.x, case.y), 5)):
        options: Any = {"noise_var": 0.1, "method": METHODS["low rank"], "generator": seeded()}
        original = ntkgp.fit(case.module(), source, **options)
        deep, through = copy.deepcopy(original), pickled(original)
        assert deep.problem.data.batches is not None
        assert deep.problem.data.batches.source is source
        assert_same_bits(original, deep, case.query)
        more = [posterior.update(case.x[:2], case.y[:2], generator=seeded()) for posterior in (original, deep)]
        assert_same_bits(*more, case.query)  # pyright: ignore[reportCallIssue]
        assert_same_bits(original, through, case.query, draws=0)
        with pytest.raises(ValueError, match=r"given as batches .* fit again"):
            through.sample(1)
        assert_same_bits(through, pickled(through), case.query, draws=0)


def test_a_posterior_of_a_group():
    case = by_name("two outputs")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            options: Any = {"noise_var": 0.1, "method": METHODS["low rank"], "generator": seeded()}
            group = ntkgp.distributed.Group()
            original = ntkgp.fit(case.module(), case.x, case.y, group=group, **options)
            deep, through = copy.deepcopy(original), pickled(original)
            assert deep.problem.data.shard is not None
            assert deep.problem.data.shard.group is group
            assert_same_bits(original, deep, case.query)
            assert_same_bits(original, through, case.query, draws=0)
            split = ntkgp.fit(case.module(), case.x, case.y, group=ntkgp.distributed.Group(memory=0), **options)
            assert torch.equal(copy.deepcopy(split).predict(case.query).mean, split.predict(case.query).mean)
        finally:
            dist.destroy_process_group()


@each_method
@each_way
@pytest.mark.parametrize("name", ["two outputs", "paper mlp", "float32", "tied embedding"])
def test_functions(method: str, way: str, name: str):
    case = by_name(name)
    posterior = fitted(case, method)
    drawn = [posterior.sample(3, generator=seeded())]
    if isinstance(posterior, TrainedPosterior):
        drawn.append(posterior.sample_networks(2, generator=seeded()))
    for functions in drawn:
        for original in (functions, functions[1]):
            other = WAYS[way](original)
            assert torch.equal(original(case.query), other(case.query))
            assert torch.equal(original[0](case.query), other[0](case.query))


def test_a_pickle_of_one_function_is_small():
    """The pickle of a part does not hold the memory of the whole."""
    posterior = by_name("paper mlp").fit(METHODS["trained"])
    assert isinstance(posterior, TrainedPosterior)
    for draw in (posterior.sample, posterior.sample_networks):
        one, many = draw(1), draw(50)
        assert len(pickle.dumps(many[7])) < 1.1 * len(pickle.dumps(one))


def ask(posterior: ntkgp.posterior.Posterior, functions: Any, x: Tensor) -> list[Tensor]:
    torch.set_num_threads(1)
    return [*answers(posterior, x), functions(x)]


def test_they_travel_to_other_processes():
    """As joblib and multiprocessing send them."""
    case = by_name("paper mlp")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for method in METHODS:
            posterior = fitted(case, method)
            functions = posterior.sample(2, generator=seeded())
            there = pool.submit(ask, posterior, functions, case.query).result()
            assert all(torch.equal(a, b) for a, b in zip(there, ask(posterior, functions, case.query), strict=True))


class OwnEstimate(CovarianceEstimate):
    head_weights = ntkgp.posterior.TightCovariance.head_weights  # pyright: ignore[reportAssignmentType]
    tail_targets = ntkgp.posterior.TightCovariance.tail_targets  # pyright: ignore[reportAssignmentType]


class OwnSolver(ntkgp.CGLS):
    pass


def test_what_files_refuse_can_still_be_copied():
    case = by_name("paper mlp")
    for method, words in (
        (
            replace(METHODS["trained"], covariance=OwnEstimate()),
            "only TightCovariance, DrawnCovariance and PaperCovariance can be saved",
        ),  # pyright: ignore
        (ntkgp.LowRank(rank=2, solver=OwnSolver()), "only CGLS can be saved as solver, got OwnSolver"),
    ):
        original = case.fit(method, generator=seeded())
        with pytest.raises(ValueError, match=words):
            pickle.dumps(original)
        assert_same_bits(original, copy.deepcopy(original), case.query)


@pytest.mark.parametrize("do", ["save", "pickle", "deep copy", "pickle functions", "deep copy of functions"])
def test_while_another_thread_calls_the_network(do: str, path: Path):
    """A call with other weights puts them into the module while it runs: nobody may read the module meanwhile."""
    case = by_name("paper mlp")
    original = fitted(case)
    functions, expected = original.sample(2, generator=seeded()), answers(original, case.query, draws=0)
    original.save(path)
    module, results = original.problem.network.module, []
    weights = [p.clone() for p in module.parameters()]
    deeds: dict[str, Callable[[], object]] = {
        "save": lambda: original.save(path),
        "pickle": lambda: pickled(original),
        "deep copy": lambda: copy.deepcopy(original),
        "pickle functions": lambda: pickled(functions),
        "deep copy of functions": lambda: copy.deepcopy(functions),
    }
    thread = threading.Thread(target=lambda: results.append(deeds[do]()))
    with original.problem.network.lock:
        with torch.no_grad():
            for p in module.parameters():
                p.zero_()
        thread.start()
        thread.join(timeout=0.3)  # it waits for the lock
        with torch.no_grad():
            for p, before in zip(module.parameters(), weights, strict=True):
                p.copy_(before)
    thread.join()
    (found,) = results
    if do == "save":
        found = ntkgp.load(path, case.module())
    if "functions" in do:
        assert torch.equal(found(case.query), functions(case.query))  # pyright: ignore[reportCallIssue]
    else:
        assert all(torch.equal(a, b) for a, b in zip(expected, answers(found, case.query, draws=0), strict=True))


def test_parametrised_weights_can_be_copied_and_saved_but_not_pickled(tmp_path: Path):
    g = torch.Generator().manual_seed(0)
    net = nn.Sequential(torch.nn.utils.parametrizations.weight_norm(nn.Linear(2, 4)), nn.Tanh(), nn.Linear(4, 1)).double()
    x = torch.randn(6, 2, generator=g, dtype=torch.float64)
    posterior = ntkgp.fit(net, x, x[:, 0], noise_var=0.1)
    with pytest.raises(TypeError, match=r"which torch cannot pickle; use posterior\.save"):
        pickle.dumps(posterior)
    posterior.save(tmp_path / "posterior")
    for again in (copy.deepcopy(posterior), ntkgp.load(tmp_path / "posterior", net)):
        assert torch.equal(again.predict(x).variance, posterior.predict(x).variance)
