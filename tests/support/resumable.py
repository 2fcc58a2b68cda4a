"""Fits that keep a checkpoint, in this process or in one of their own."""

import contextlib
import multiprocessing
import signal
import time
import warnings
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import ntkgp
from tests.support.cases import by_name
from tests.support.helpers import seeded
from tests.support.ranks import CONTEXT, METHODS, serve

RESUMABLE = ["rank", "kernel", "rtol", "weights", "gd", "adam"]  # of ranks.METHODS


def fitted(
    method: str, folder: Path | str | None, generator: torch.Generator | None = None, every: float = 0, **options: object
) -> ntkgp.posterior.Posterior:
    case = by_name("paper mlp")
    keep = None if folder is None else ntkgp.storage.Checkpoint(folder, every=every)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ntkgp.NumericalWarning)  # Adam is stopped while it improves
        return case.fit(METHODS[method], generator=seeded() if generator is None else generator, checkpoint=keep, **options)


def values(posterior: ntkgp.posterior.Posterior) -> Tensor:
    p = posterior.predict(by_name("paper mlp").query)
    return torch.stack([p.mean, p.variance, p.lower, p.upper])


class Child:
    """A fit in a process of its own, and what comes of it: values, an exception, or None if the process died."""

    def __init__(self, process: BaseProcess, pipe: Any):
        self.process, self.pipe = process, pipe
        self.pid = process.pid or 0

    def ended(self, within: float) -> bool:
        return self.pipe.poll(within)

    @property
    def answer(self) -> Tensor | BaseException | None:
        try:
            found = self.pipe.recv() if self.pipe.poll(600) else AssertionError("it hangs")
        except EOFError:
            return None
        return found if isinstance(found, BaseException) else torch.tensor(found, dtype=torch.float64)


@contextlib.contextmanager
def child(method: str, folder: Path | None, every: float = 0) -> Iterator[Child]:
    serve()
    mine, theirs = multiprocessing.Pipe()
    process = CONTEXT.Process(target=_fit, args=(method, folder, every, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Child(process, mine)
    finally:
        process.kill()
        process.join()
        mine.close()


def timed(method: str, folder: Path, every: float) -> tuple[Tensor, float]:
    """What a fit ends with that nobody interrupts, and how long it takes."""
    start = time.monotonic()
    with child(method, folder, every) as undisturbed:
        answer = undisturbed.answer
    assert isinstance(answer, Tensor), answer
    return answer, time.monotonic() - start


def _fit(method: str, folder: Path | None, every: float, pipe: Any) -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells make processes in the background ignore it
    answer: Any = None
    try:
        posterior = fitted(method, folder, every=every)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        answer = values(posterior).tolist()
    except BaseException as error:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        answer = type(error)(*map(str, error.args))
    pipe.send(answer)
