"""Several processes on this machine, each a rank: forked from a server that has imported everything, so it takes no time."""

import datetime
import multiprocessing
import os
import pickle
import time
import traceback
from collections.abc import Callable
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import wait
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import ntkgp
from tests.support.cases import Case, by_name
from tests.support.helpers import ROOT

TIMEOUT = 60.0  # of the groups under test
GRACE = 2.0  # seconds that a rank waits for the answers of the others before it leaves
TIGHT = ntkgp.CGLS(tol=1e-11, max_iterations=5000)
METHODS = {
    "rank": ntkgp.LowRank(rank=6, draws=3, solver=TIGHT, side="weights"),
    "kernel": ntkgp.LowRank(rank=6, draws=3, solver=TIGHT, side="kernel"),
    "rtol": ntkgp.LowRank(rtol=0.05, solver=TIGHT, side="weights"),
    "exact": ntkgp.Exact("kernel"),
    "weights": ntkgp.Exact("weights"),
    "trained": ntkgp.TrainedNetworks(rank=3, tail=2),
    "gd": ntkgp.TrainedNetworks(rank=2, tail=1, trainer=ntkgp.AcceleratedGD(tol=1e-3)),
    "adam": ntkgp.TrainedNetworks(rank=2, tail=1, trainer=ntkgp.Adam(lr=1e-3, patience=10, max_steps=60)),
    "chosen": None,
}  # to be fitted by several processes, or stopped and resumed
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.support.ranks_server", "tests.support.ranks"])


@cache
def serve() -> None:
    """Start the server, which finds the tests by an environment that is put back at once."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *([before] if before else [])])
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)


class Died(Exception):
    """A process that ended without an answer."""


def run(size: int, task: Callable[..., Any], *arguments: Any, patience: float = 600.0, meet: bool = False) -> list[Any]:
    """What ``task(rank, *arguments)`` returns on each rank; exceptions and deaths are returned, not raised.

    Where they meet at the end no rank leaves while another is still making connections to it.
    """
    serve()
    with TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(size):
            mine, theirs = CONTEXT.Pipe()
            about = (rank, size, f"{folder}/store", theirs, task, arguments, meet)
            process = CONTEXT.Process(target=_rank, args=about, daemon=True)
            process.start()
            theirs.close()
            pipes.append(mine)
            processes.append(process)
        answers: list[Any] = [None] * size
        waiting, until = dict(zip(pipes, range(size), strict=True)), time.monotonic() + patience
        while waiting and time.monotonic() < until:
            for pipe in wait(list(waiting), timeout=1.0):
                rank = waiting.pop(pipe)  # pyright: ignore[reportArgumentType]
                try:
                    answers[rank] = pickle.loads(pipe.recv_bytes())  # pyright: ignore[reportAttributeAccessIssue]
                except EOFError:
                    answers[rank] = Died()
        for pipe in pipes:
            pipe.close()  # now they may leave
        for process in processes:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()
        assert not waiting, f"ranks {sorted(waiting.values())} were still busy after {patience:.0f} s"
        return answers


def results(size: int, task: Callable[..., Any], *arguments: Any) -> list[Any]:
    """The same where no rank may fail."""
    answers = run(size, task, *arguments, meet=True)
    for rank, answer in enumerate(answers):
        if isinstance(answer, BaseException):
            raise AssertionError(f"rank {rank} of {size}: {answer}") from answer
    return answers


def _rank(
    rank: int, size: int, store: str, pipe: Any, task: Callable[..., Any], arguments: tuple[Any, ...], meet: bool
) -> None:
    torch.set_num_threads(1)
    os.environ.pop("LOCAL_WORLD_SIZE", None)
    try:
        limit = datetime.timedelta(seconds=60)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=limit)
        answer = task(rank, *arguments)
        if meet:
            dist.barrier()
    except Exception as error:
        error.args = (f"{error}\n{traceback.format_exc()}" if not error.args else str(error), *error.args[1:])
        answer = error
    pipe.send_bytes(pickle.dumps(answer))  # by value, not through shared memory
    pipe.poll(GRACE)  # until the others have answered: one that is still connecting to this rank would fail if it left
    os._exit(0)  # connections that are still open would be waited for


def cut(count: int, size: int, rank: int, how: str = "even") -> slice:
    """This rank's points: about as many as the others', uneven, or all but none on rank 0."""
    edges = {
        "even": [round(count * k / size) for k in range(size + 1)],
        "uneven": [0, *(count - (size - k) for k in range(1, size)), count],
        "empty first": [0, *(round(count * k / max(1, size - 1)) for k in range(size))],
    }[how]
    return slice(edges[rank], edges[rank + 1])


def shard_of(
    name: str, size: int, rank: int, how: str, loader: bool = False
) -> tuple[Case, Any, Tensor | None, float | Tensor]:
    """A rank's part of a case: data, targets, and the noise that goes with it."""
    case = by_name(name)
    here = cut(len(case.x), size, rank, how)
    noise = case.noise_var[here] if isinstance(case.noise_var, Tensor) else case.noise_var
    if not loader:
        return case, case.x[here], case.y[here], noise
    part = TensorDataset(case.x[here], case.y[here])
    return case, DataLoader(part, batch_size=5) if len(part) else [], None, noise
