"""A soak: random fits, updates, questions, savings and loadings, one after the other, for as long as wished.

    python -m tests.reliability.soak --minutes 60

After every step the invariants of test_properties.py are checked, and what the process is not to change. Every few
seconds its resident memory is noted: after a first quarter in which caches fill, it must stay where it is. Writes what it did
and how the memory went to benchmarks/results/robustness.jsonl (``--keep``); exits with 1 at the first violation, whose seed it
prints.
"""

import argparse
import ctypes
import gc
import math
import os
import random
import resource
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import ntkgp
from tests.support import oracle
from tests.support.helpers import SURE
from tests.support.long_form import record
from tests.support.unchanged import unchanged

KEPT = 60  # points of a posterior, beyond which it starts anew


class Soak:
    """One posterior at a time, and what it should know."""

    def __init__(self, seed: int, folder: Path):
        self.seed, self.folder, self.steps = seed, folder, 0
        self.counts: dict[str, int] = {}
        self.posterior: ntkgp.posterior.Posterior | None = None

    def step(self) -> None:
        """One deed at random; the same seed does the same."""
        draw = random.Random(f"{self.seed} {self.steps}")
        g = torch.Generator().manual_seed(draw.getrandbits(40))
        anew = self.posterior is None or len(self.x) > KEPT
        deed = "fit" if anew else draw.choice(["fit", "update", "update", "predict", "sample", "travel"])
        with unchanged(*([] if self.posterior is None else [self.net])):
            getattr(self, deed)(draw, g)
        self.check(draw, g)
        self.steps += 1
        self.counts[deed] = self.counts.get(deed, 0) + 1

    def fit(self, draw: random.Random, g: torch.Generator) -> None:
        D, C = draw.randint(1, 3), draw.randint(1, 2)
        activation = draw.choice([nn.Tanh, nn.SiLU, nn.ReLU, ntkgp.networks.Sine])()
        self.net = ntkgp.mlp(D, C, draw.randint(2, 12), draw.randint(1, 2), activation, generator=g).double()
        self.x, self.y = self.data(draw.randint(1, 20), D, C, g)
        self.noise = 10.0 ** draw.uniform(-3, 2)
        rank = draw.randint(1, min(len(self.x) * C, 6))
        self.method = draw.choice([
            ntkgp.Exact(), ntkgp.LowRank(rank=rank, draws=draw.randint(0, 3), confidence=SURE),
            ntkgp.Exact("weights"), ntkgp.LowRank(rtol=0.5, confidence=SURE),
            ntkgp.TrainedNetworks(rank=1, trainer=ntkgp.AcceleratedGD(tol=0.5, max_steps=300)),
        ])  # fmt: skip
        self.posterior = ntkgp.fit(self.net, self.x, self.y, noise_var=self.noise, method=self.method, generator=g)

    def data(self, count: int, D: int, C: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, D, generator=g, dtype=torch.float64)
        return x, torch.randn(count, C, generator=g, dtype=torch.float64)

    def update(self, draw: random.Random, g: torch.Generator) -> None:
        assert self.posterior is not None
        x, y = self.data(draw.randint(1, 6), self.x.shape[1], self.y.shape[1], g)
        at = self.query(g)
        before = self.posterior.predict(at).variance
        after = self.posterior.update(x, y, generator=g)
        assert torch.equal(self.posterior.predict(at).variance, before), "an update changed what it started from"
        self.posterior, self.x, self.y = after, torch.cat([self.x, x]), torch.cat([self.y, y])

    def predict(self, draw: random.Random, g: torch.Generator) -> None:
        assert self.posterior is not None
        at = self.query(g, draw.randint(1, 200))
        assert torch.equal(self.posterior.predict(at).mean, self.posterior.predict(at).mean), "not the same twice"

    def sample(self, draw: random.Random, g: torch.Generator) -> None:
        assert self.posterior is not None
        functions, at = self.posterior.sample(draw.randint(1, 8), generator=g), self.query(g)
        assert bool(torch.isfinite(functions(at)).all())
        assert torch.equal(functions(at), functions(at))

    def travel(self, draw: random.Random, g: torch.Generator) -> None:
        """To a file and back, bit by bit."""
        assert self.posterior is not None
        path, at = self.folder / "posterior.safetensors", self.query(g)
        self.posterior.save(path)
        loaded = ntkgp.load(path, self.net)
        assert torch.equal(loaded.predict(at).variance, self.posterior.predict(at).variance), "another answer after loading"
        assert os.listdir(self.folder) == [path.name]
        self.posterior = loaded

    def query(self, g: torch.Generator, count: int = 3) -> Tensor:
        return torch.cat([self.x[:1], 2 * torch.randn(count, self.x.shape[1], generator=g, dtype=torch.float64)])

    def check(self, draw: random.Random, g: torch.Generator) -> None:
        """0 ≤ lower ≤ variance ≤ upper, and the exact variance between them."""
        assert self.posterior is not None
        at = self.query(g)
        p = self.posterior.predict(at)
        mean, variance, lower, upper = (part.flatten() for part in (p.mean, p.variance, p.lower, p.upper))
        assert bool(torch.isfinite(torch.stack([mean, variance, lower, upper])).all()), "not finite"
        assert bool(((lower >= 0) & (lower <= variance) & (variance <= upper)).all()), "the bracket is upside down"
        truth = oracle.pose(self.net, self.x, self.y, at, self.noise, 1.0, None)
        slack = 1e-9 * (1 + truth.kernel.diagonal().sum() / self.noise) ** 0.5 * truth.prior.diagonal()
        assert bool(((lower <= truth.variance + slack) & (upper >= truth.variance - slack)).all()), "the bracket does not hold"
        if not isinstance(self.method, ntkgp.TrainedNetworks):
            size = (truth.residual / truth.noise.sqrt()).norm()
            room = 1e-4 * (1 + size) * (truth.variance.clamp_min(0).sqrt() + slack.sqrt())
            assert bool(((mean - truth.mean).abs() <= room).all()), "the mean is off"


def resident() -> int:
    """Bytes of memory the process holds; its peak where there is no /proc.

    First the C library gives back what is free: holes between blocks of many sizes come and go, and are no leak.
    """
    gc.collect()
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def soak(minutes: float, seed: int = 0, quiet: bool = False, steps: float = math.inf) -> dict[str, object]:
    """Run for so many minutes, or so many steps if that is less.

    Returns what was done, and by how much memory grew from the second quarter to the last, in per cent.
    """
    torch.set_num_threads(1)
    memory: list[tuple[float, int]] = []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", message=".*networks stopped after", category=ntkgp.NumericalWarning)
        run, start = Soak(seed, Path(folder)), time.monotonic()
        while (spent := (time.monotonic() - start) / 60) < minutes and run.steps < steps:
            try:
                run.step()
            except BaseException:
                print(f"violation at step {run.steps} of seed {seed}", file=sys.stderr)
                raise
            if run.steps % 50 == 0 or not memory:
                memory.append((spent, resident()))
                if not quiet and run.steps % 1000 == 0:
                    print(f"{spent:6.1f} min, {run.steps} steps, {memory[-1][1] / 2**20:.0f} MB", flush=True)
    return {
        "minutes": round(minutes, 2), "steps": run.steps, "deeds": dict(sorted(run.counts.items())), "violations": 0,
        "memory_mb": round(memory[-1][1] / 2**20, 1), "drift_percent": round(drift(memory), 3), "seed": seed,
    }  # fmt: skip


def drift(memory: list[tuple[float, int]]) -> float:
    """Growth of the resident memory in per cent: the median of the last quarter of the time against that of the second."""
    last = memory[-1][0]
    second = [size for at, size in memory if last / 4 <= at < last / 2] or [memory[0][1]]
    fourth = [size for at, size in memory if at >= 3 * last / 4]
    return 100 * float(np.median(fourth) / np.median(second) - 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="keep the figures in benchmarks/results/robustness.jsonl")
    chosen = parser.parse_args()
    found = soak(chosen.minutes, chosen.seed)
    print(found)
    if chosen.keep:
        record("soak", **found)
    sys.exit(0 if abs(float(str(found["drift_percent"]))) <= 1 else 1)
