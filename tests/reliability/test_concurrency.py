"""Threads, processes and forks: the same answers as one thread in one process.

Tolerances: sixteen threads and a second process give the same bits, as long as each thread computes alone; another number of
torch's own threads adds sums up in another order, which may move the last digits: 1e-9 of the answer in float64.
"""

import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

import ntkgp
from ntkgp._system import locks
from ntkgp._system.locks import cached_property
from ntkgp.problem.batches import Batches
from tests.support.cases import by_name
from tests.support.helpers import METHODS, each_method, flat_answers, seeded
from tests.support.unchanged import unchanged

pytestmark = pytest.mark.usefixtures("unchecked")
THREADS = 16


def fitted(name: str, method: str) -> ntkgp.posterior.Posterior:
    case = by_name(name)
    return case.fit(METHODS[method], generator=seeded())


def in_threads(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """All at the same moment. Worker threads start with torch's own number of threads, which splits sums in another way."""
    barrier = threading.Barrier(count)

    def one(k: int) -> Any:
        torch.set_num_threads(1)
        barrier.wait()
        return work(k)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@each_method
@pytest.mark.parametrize("name", ["two outputs", "weight used directly", "attention", "recurrent"])
def test_sixteen_threads_get_what_one_gets(name: str, method: str):
    posterior, query = fitted(name, method), by_name(name).query
    points = [query[k % 4 :] for k in range(THREADS)]
    serial = [flat_answers(posterior, x) for x in points[:4]]
    with unchanged():
        parallel = in_threads(lambda k: flat_answers(posterior, points[k]))
    assert all(torch.equal(serial[k % 4], found) for k, found in enumerate(parallel))


@each_method
def test_sixteen_threads_fit(method: str):
    """Of the same module, while it is fitted by others."""
    case = by_name("two outputs")
    module = case.module()

    def fit(_: int) -> Tensor:
        p = ntkgp.fit(module, case.x, case.y, noise_var=0.1, method=METHODS[method], generator=seeded())
        return p.predict(case.query).variance

    alone = fit(0)
    with unchanged(module):
        assert all(torch.equal(found, alone) for found in in_threads(fit))


@each_method
def test_sixteen_threads_update_one_posterior(method: str):
    """Successors share memory with it: sixteen of them, each with its own data, must not write into each other's."""
    case = by_name("two outputs")
    before = fitted("two outputs", method)
    kept = flat_answers(before, case.query)

    def update(k: int) -> Tensor:
        x, y = case.query[:2] + 0.1 * (k % 4), case.y[:2] + k % 4
        return flat_answers(before.update(x, y, generator=seeded(k % 4)), case.query)

    serial = [update(k) for k in range(4)]
    assert all(torch.equal(serial[k % 4], found) for k, found in enumerate(in_threads(update)))
    assert torch.equal(flat_answers(before, case.query), kept)


SCRIPT = """
import json, sys
import torch, ntkgp
torch.set_num_threads(int(sys.argv[1]))
methods = {"exact": ntkgp.Exact(), "low rank": ntkgp.LowRank(rank=8, draws=4, solver=ntkgp.CGLS(tol=1e-9)),
           "trained": ntkgp.TrainedNetworks(rank=2, trainer=ntkgp.AcceleratedGD(tol=0.5))}
answers = {}
for name, method in methods.items():
    g = torch.Generator().manual_seed(0)
    net = ntkgp.mlp(3, 2, width=48, generator=g).double()
    x, query = torch.randn(60, 3, generator=g).double(), torch.randn(30, 3, generator=g).double()
    posterior = ntkgp.fit(net, x, torch.stack([x[:, 0].sin(), x[:, 1]], 1), noise_var=0.1, method=method, generator=g)
    p = posterior.predict(query)
    parts = (p.mean, p.variance, p.lower, p.upper, posterior.sample(3, generator=g)(query))
    answers[name] = torch.cat([part.flatten() for part in parts]).tolist()
print(json.dumps(answers))
"""


def test_the_same_seed_gives_the_same_answer_in_every_process():
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}

    def process(threads: int) -> dict[str, list[float]]:
        command = [sys.executable, "-c", SCRIPT, str(threads)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, timeout=300)
        return json.loads(done.stdout)

    one, again, with_two = process(1), process(1), process(2)
    assert one == again  # JSON keeps every bit of a float64
    # Conjugate gradients and training stop when they are within their tolerance, which rounding may move by a step.
    for method, rtol in {"exact": 1e-9, "low rank": 1e-5, "trained": 1e-2}.items():
        expected, found = (torch.tensor(values[method], dtype=torch.float64) for values in (one, with_two))
        torch.testing.assert_close(found, expected, rtol=rtol, atol=rtol * float(expected.abs().max()))


class Asking(Dataset[Tensor]):
    """A data set whose items a posterior computes, in the worker."""

    def __init__(self, posterior: ntkgp.posterior.Posterior, query: Tensor):
        self.posterior, self.query = posterior, query

    def __len__(self) -> int:
        return len(self.query)

    def __getitem__(self, index: int) -> Tensor:
        return self.posterior.predict(self.query[index : index + 1]).variance


@each_method
def test_posteriors_answer_in_the_workers_of_a_loader(method: str):
    """Forked, after the parent has computed with threads of its own."""
    posterior, query = fitted("two outputs", method), by_name("two outputs").query
    expected = torch.cat([posterior.predict(x).variance for x in query.split(1)])
    loader = DataLoader(Asking(posterior, query), batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=120)
    assert torch.equal(torch.cat(list(loader)), expected)


def test_data_from_the_workers_of_a_loader():
    case = by_name("two outputs")
    pairs = TensorDataset(case.x, case.y)
    method = METHODS["low rank"]
    expected = ntkgp.fit(case.module(), DataLoader(pairs, 5), noise_var=0.1, method=method, generator=seeded())
    loader = DataLoader(pairs, 5, num_workers=2, multiprocessing_context="fork", timeout=120)
    found = ntkgp.fit(case.module(), loader, noise_var=0.1, method=method, generator=seeded())
    assert torch.equal(found.predict(case.query).variance, expected.predict(case.query).variance)


def _child(posterior: ntkgp.posterior.Posterior, query: Tensor, out: Any) -> None:
    torch.set_num_threads(1)
    out.put(hashlib.sha256(flat_answers(posterior, query).numpy().tobytes()).hexdigest())


@each_method
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_fork_while_other_threads_compute(method: str):
    """A lock that another thread holds at that moment stays locked in the child, where nobody is left to open it."""
    posterior, query = fitted("weight used directly", method), by_name("weight used directly").query
    expected = hashlib.sha256(flat_answers(posterior, query).numpy().tobytes()).hexdigest()
    stop = threading.Event()

    def busy() -> None:
        torch.set_num_threads(1)
        while not stop.is_set():
            posterior.predict(query)
            time.sleep(0.001)  # a fork waits for the locks of threads, which are not handed out in turn

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    context = multiprocessing.get_context("fork")
    try:
        for _ in range(5):
            out = context.Queue()
            child = context.Process(target=_child, args=(posterior, query, out), daemon=True)
            child.start()
            try:
                assert out.get(timeout=300) == expected
            finally:
                child.join(10)
                child.kill()
            time.sleep(0.01)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


class Slow:
    @cached_property
    def answer(self) -> int:
        time.sleep(1)
        return 42


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_fork_while_another_thread_computes_a_cached_property():
    """functools.cached_property hangs here up to Python 3.11: its lock belongs to the class; the child inherits it locked."""
    slow = threading.Thread(target=lambda: Slow().answer)
    slow.start()
    time.sleep(0.2)
    child = multiprocessing.get_context("fork").Process(target=lambda: Slow().answer, daemon=True)
    child.start()
    child.join(60)
    finished = child.exitcode
    child.kill()
    slow.join()
    assert finished == 0


def test_threads_share_what_one_of_them_computed():
    one = Slow()
    found = in_threads(lambda _: one.answer, 4)
    assert found == [42] * 4
    assert vars(one) == {"answer": 42}


SILENT = """
import multiprocessing, os, signal, threading, torch, ntkgp
torch.set_num_threads(1)
net, x = ntkgp.mlp(1, width=8), torch.linspace(-1, 1, 9).unsqueeze(1)
fit = lambda: [ntkgp.fit(net, x, x[:, 0], noise_var=0.1, method=m) for m in (
    ntkgp.Exact(), ntkgp.LowRank(rank=2), ntkgp.TrainedNetworks(rank=1, trainer=ntkgp.AcceleratedGD(tol=0.5)))]
before = threading.active_count()
fit()
assert threading.active_count() == before, threading.enumerate()
from tqdm import tqdm
tqdm.get_lock()  # one for this process and those it forks
if (child := os.fork()) == 0:
    tqdm.get_lock().acquire()
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
fit()
"""


def test_without_a_bar_there_is_no_thread_and_no_lock():
    """A forked process that was killed with the lock of all bars in its hands stops nobody who shows none."""
    done = subprocess.run([sys.executable, "-c", SILENT], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_batches_are_known_again_with_another_number_of_threads():
    x, y, before = torch.randn(20_000, 3, generator=seeded()), torch.randn(20_000, generator=seeded()), torch.get_num_threads()
    batches = Batches(DataLoader(TensorDataset(x, y), 10_000), torch.device("cpu"))
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert len(list(batches)) == 2
    finally:
        torch.set_num_threads(before)


def test_threads_that_fork_release_the_locks_that_they_acquired():
    lock, errors = locks.ForkLock(order=9), []

    def work(_: int) -> None:
        try:
            for _ in range(300):
                locks._acquire_all()
                locks._release_all()
        except RuntimeError as error:
            errors.append(error)

    in_threads(work, 4)
    assert not errors
    assert lock.lock.acquire(timeout=5)
