"""Memory: what is documented is measured, limits of the process are honoured, running out is survived or explained."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkgp
from ntkgp._system import memory
from ntkgp._system.memory import by_halves, free_bytes, out_of_memory, ran_out
from ntkgp.tangent.factors.direct import Direct
from ntkgp.tangent.factors.factor import Factor
from ntkgp.tangent.factors.lookup import Lookup
from ntkgp.tangent.factors.outer import Outer
from ntkgp.tangent.tangent import Tangent
from tests.support.cases import by_name

MB = 2**20
OWN = 40 * MB  # buffers of the linear algebra library, which depend on the processor
CPU = torch.device("cpu")
FULL = RuntimeError("[enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate memory: you tried ...")

# Peaks are those of the whole process, so each measurement has one of its own.
SCRIPT = """
import json, resource, sys, torch, ntkgp
torch.set_num_threads(1)
g = torch.Generator().manual_seed(0)

def pages(which):
    return int(open("/proc/self/statm").read().split()[which]) * resource.getpagesize()

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

def limit(extra):
    resource.setrlimit(resource.RLIMIT_AS, (pages(0) + extra, resource.RLIM_INFINITY))

def data(points, width, dtype=torch.float32):
    net = ntkgp.mlp(4, width=width, generator=g).to(dtype)
    x = torch.randn(points, 4, generator=g, dtype=dtype)
    return net, x, x[:, 0].sin()

warm = data(8, 8)
ntkgp.fit(*warm, noise_var=0.1).predict(warm[1])
ntkgp.fit(*warm, noise_var=0.1, method=ntkgp.LowRank(rank=2), generator=g).predict(warm[1])
"""

# glibc keeps freed blocks, more or fewer from run to run; what is asked of it is the same each time, and that is documented.
PROMPT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def measured(body: str, **environment: str) -> Any:
    """What a script prints as JSON at its end."""
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", SCRIPT + body],
        capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_factors_that_do_not_fit_are_computed_anew():
    """60,000 points of a network of width 64: 63 MB of factors, with 50 MB to spare. And no more is taken than that."""
    found = measured("""
net, x, y = data(60_000, 64)
method = ntkgp.LowRank(rank=2, draws=2, side="weights", solver=ntkgp.CGLS(tol=1e-1))
before = pages(1)
limit(50 * 2**20)
p = ntkgp.fit(net, x, y, noise_var=0.1, method=method, generator=g).predict(x[:100])
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
print(json.dumps([peak() - before, bool(torch.isfinite(p.variance).all())]))
""")
    assert found[0] < 50 * MB
    assert found[1]


@pytest.mark.parametrize(("body", "budget"), [
    # Exact: one matrix, formed and factorised in place, beside blocks of columns; then a block of 256 MB for queries.
    ("net, x, y = data(3000, 64); before = pages(1); ntkgp.fit(net, x, y, noise_var=0.1, method=ntkgp.Exact('kernel'))",
     1.2 * 3000**2 * 8 + OWN),
    # Over the weights: one matrix and one working set of 128 MB, however many points come from a loader.
    ("from torch.utils.data import DataLoader, TensorDataset; net, x, y = data(60_000, 32); "
     "loader = DataLoader(TensorDataset(x, y), batch_size=5000); before = pages(1); ntkgp.fit(net, loader, noise_var=0.1)",
     1248**2 * 8 + 128 * MB + 6 * 60_000 * 8 + OWN),
    ("net, x, y = data(300, 64); p = ntkgp.fit(net, x, y, noise_var=0.1); q = torch.randn(60_000, 4); before = pages(1); "
     "p.predict(q)", 256 * MB),
    # LowRank: the factors, once more while they are made, one working set of 128 MB, and vectors over the weights.
    ("net, x, y = data(8000, 128); before = pages(1); "
     "ntkgp.fit(net, x, y, noise_var=0.1, method=ntkgp.LowRank(rank=4, draws=4), generator=g)",
     2 * 8000 * 4 * (128 * 4 + 8) + 128 * MB + 6 * 14 * 17_000 * 8 + OWN),
], ids=["fit over observations", "fit over weights", "predict exact", "fit low rank"])  # fmt: skip
def test_peaks_are_as_documented(body: str, budget: float):
    assert measured(body + "\nprint(json.dumps(peak() - before))", **PROMPT) < budget


@pytest.mark.parametrize(("body", "words"), [
    ("net, x, y = data(6000, 16); limit(300 * 2**20); ntkgp.fit(net, x, y, noise_var=0.1, method=ntkgp.Exact('kernel'))",
     ["ntkgp.LowRank"]),
    ("net, x, y = data(6000, 16); limit(250 * 2**20); ntkgp.fit(net, x, y, noise_var=0.1, method=ntkgp.Exact('kernel'))",
     ["6000 points", "GiB", "ntkgp.LowRank"]),
    ("net, x, y = data(200, 512); limit(150 * 2**20); "
     "ntkgp.fit(net, x, y, noise_var=0.1, method=ntkgp.LowRank(rank=150), generator=g)",
     ["lower rank"]),
    ("net, x, y = data(50, 512); p = ntkgp.fit(net, x, y, noise_var=0.1); limit(150 * 2**20); p.sample(400, generator=g)",
     ["fewer functions", "count"]),
    ("net, x, y = data(50, 16); p = ntkgp.fit(net, x, y, noise_var=0.1); limit(300 * 2**20); "
     "p.covariance(torch.randn(8000, 4))",
     ["fewer points of x"]),
], ids=["exact, barely", "exact", "low rank", "sample", "covariance"])  # fmt: skip
def test_what_cannot_fit_says_which_argument_to_change(body: str, words: list[str]):
    *lines, last = body.split("; ")
    code = (
        "; ".join(lines)
        + f"""
try:
    {last}
    said = "nothing"
except (ValueError, torch.OutOfMemoryError) as error:
    said = str(error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
print(json.dumps(said))
"""
    )
    said = measured(code)
    assert [word for word in words if word not in said] == [], said


def test_queries_go_on_with_little_memory():
    """The same answers in a tenth of the memory that a block of queries would like."""
    found = measured("""
net, x, y = data(1500, 64, torch.float64)
p = ntkgp.fit(net, x, y, noise_var=0.1)
q = torch.randn(30_000, 4, dtype=torch.float64, generator=g)
expected = p.predict(q).variance
limit(120 * 2**20)
got = p.predict(q).variance
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
print(json.dumps(float((got - expected).abs().max() / expected.max())))
""")
    assert found < 1e-9


def test_limits_of_the_process_and_its_group_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "_system", lambda: 10**9)
    monkeypatch.setattr(memory, "_process", lambda: 2 * 10**9)
    (tmp_path / "max").write_text("1000000\n")
    (tmp_path / "current").write_text("900000\n")
    (tmp_path / "stat").write_text("anon 5\ninactive_file 50000\n")
    monkeypatch.setattr(memory, "_group_files", lambda: [(tmp_path / "max", tmp_path / "current", tmp_path / "stat")])
    assert free_bytes(CPU) == 150_000
    (tmp_path / "max").write_text("max\n")
    assert free_bytes(CPU) == 10**9
    monkeypatch.setattr(memory, "_process", lambda: -5)
    assert free_bytes(CPU) == 0


def test_what_a_gpu_leaves(monkeypatch: pytest.MonkeyPatch):
    """Free on the device and reserved but not allocated; never more than this process may have."""
    known = {"memory_reserved": 30, "memory_allocated": 20, "mem_get_info": (50, 100), "get_per_process_memory_fraction": 1.0}
    for name in known:
        monkeypatch.setattr(torch.cuda, name, lambda device, name=name: known[name])
    assert free_bytes(torch.device("cuda")) == 60
    known["get_per_process_memory_fraction"] = 0.5
    assert free_bytes(torch.device("cuda")) == 30
    known["get_per_process_memory_fraction"] = 0.1
    assert free_bytes(torch.device("cuda")) == 0


@pytest.fixture
def limited_gpu() -> Iterator[Callable[[int], None]]:
    """A function that leaves this process so many bytes of the GPU, and starts to look for the peak."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    net, x, y = on_gpu(8, 8)  # what is loaded at first use
    ntkgp.fit(net, x, y, noise_var=0.1, method=ntkgp.LowRank(rank=2)).predict(x)
    ntkgp.fit(net, x, y, noise_var=0.1).predict(x)

    def limit(size: int) -> None:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + size) / torch.cuda.mem_get_info()[1])

    yield limit
    torch.cuda.set_per_process_memory_fraction(1.0)


def on_gpu(points: int, width: int, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(points, 4, generator=g).to("cuda", dtype)
    return ntkgp.mlp(4, width=width, generator=g).to("cuda", dtype), x, x[:, 0].sin()


@pytest.mark.gpu
def test_a_limit_of_the_gpu_is_honoured(limited_gpu: Callable[[int], None]):
    """400,000 points of a network of width 256: 1.7 GB of factors, with 1 GB to spare; the same answers as without a limit.

    With much noise: every product then computes all factors anew, and the solver is to make few of them.
    """
    net, x, y = on_gpu(400_000, 256)
    method = ntkgp.LowRank(rank=8, draws=8, side="weights", solver=ntkgp.CGLS(tol=1e-6))

    def answers() -> ntkgp.Prediction:
        generator = torch.Generator("cuda").manual_seed(0)
        return ntkgp.fit(net, x, y, noise_var=1e4, method=method, generator=generator).predict(x[:2000])

    expected = answers()
    before = torch.cuda.memory_allocated()
    limited_gpu(2**30)
    got = answers()
    assert torch.cuda.max_memory_allocated() - before < 2**30
    assert bool(((got.mean - expected.mean).abs() <= 0.01 * expected.std).all())
    for name in ("lower", "upper"):
        torch.testing.assert_close(getattr(got, name), getattr(expected, name), rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
def test_peaks_on_the_gpu_are_as_documented(limited_gpu: Callable[[int], None]):
    net, x, y = on_gpu(6000, 64)
    limited_gpu(8 * 2**30)
    before = torch.cuda.memory_allocated()
    posterior = ntkgp.fit(net, x, y, noise_var=0.1, method=ntkgp.Exact("kernel"))
    assert torch.cuda.max_memory_allocated() - before < 1.2 * 6000**2 * 8 + 100 * MB
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    posterior.predict(torch.randn(60_000, 4, device="cuda"))
    assert torch.cuda.max_memory_allocated() - before < 256 * MB + 100 * MB


@pytest.mark.gpu
def test_a_gpu_that_is_full_says_which_argument_to_change(limited_gpu: Callable[[int], None]):
    net, x, y = on_gpu(2000, 512)
    limited_gpu(300 * MB)
    with pytest.raises(torch.OutOfMemoryError, match="lower rank"):
        ntkgp.fit(net, x, y, noise_var=0.1, method=ntkgp.LowRank(rank=500))


def failing(work: Callable[..., Any], rows: Callable[..., int], most: int) -> Callable[..., Any]:
    """The same, for few points only."""

    def limited(*arguments: Any, **options: Any) -> Any:
        if rows(*arguments) > most:
            raise FULL
        return work(*arguments, **options)

    return limited


@pytest.mark.parametrize("name", ["two outputs", "weight used directly", "cnn", "padded embedding"])
def test_half_as_many_points_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch):
    """Every product fails with more than two points at once: the answers are the same."""
    case = by_name(name)
    low_rank = ntkgp.LowRank(rank=3, solver=ntkgp.CGLS(tol=1e-10))
    methods = [ntkgp.Exact(), low_rank, ntkgp.TrainedNetworks(rank=1, trainer=ntkgp.AcceleratedGD(tol=0.1))]

    def answers() -> list[Tensor]:
        found = [case.fit(method, generator=torch.Generator().manual_seed(0)) for method in methods]
        asked = [(p.predict(case.query), p.covariance(case.query)) for p in found]
        return [part for p, covariance in asked for part in (p.mean, p.upper, covariance)]

    expected = answers()
    for kind in (Direct, Outer, Lookup):
        for product in ("matmat", "accumulate", "kernel"):
            work = getattr(kind, product)
            monkeypatch.setattr(kind, product, failing(work, lambda factor, *_: len(next(iter(factor.tensors.values()))), 2))
    monkeypatch.setattr(Tangent, "chunk", failing(Tangent.chunk, lambda _, x, *check: len(x), 3))
    for got, before in zip(answers(), expected, strict=True):
        torch.testing.assert_close(got, before, rtol=1e-6, atol=1e-9)


def test_an_operation_that_runs_out_is_no_operation_without_derivative(monkeypatch: pytest.MonkeyPatch):
    """On a CPU both are RuntimeErrors: taking one for the other would make everything slow for good, in silence."""
    case = by_name("weight used directly")
    posterior = case.fit(ntkgp.LowRank(rank=2), generator=torch.Generator().manual_seed(0))
    calls: list[int] = []

    def fails_once(*_: Any, **__: Any) -> Any:
        calls.append(1)
        raise FULL

    monkeypatch.setattr("ntkgp.tangent.autodiff.jvp", fails_once)
    with pytest.raises(torch.OutOfMemoryError, match="fewer points of x"):
        posterior.predict(case.query)
    assert calls
    monkeypatch.undo()
    assert posterior.problem.network.transformable  # pyright: ignore[reportAttributeAccessIssue]


def test_what_running_out_of_memory_looks_like():
    assert ran_out(FULL)
    assert ran_out(MemoryError())
    assert ran_out(torch.OutOfMemoryError("CUDA out of memory"))
    assert ran_out(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    assert not ran_out(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="allocate memory"):
        torch.empty(2**55)
    with pytest.raises(MemoryError):
        by_halves(lambda rows: (_ for _ in ()).throw(MemoryError()), 4)
    with pytest.raises(torch.OutOfMemoryError, match=r"out of memory; to use less: lower rank"), out_of_memory("lower rank"):
        raise MemoryError
    with pytest.raises(ValueError, match="something else"), out_of_memory("lower rank"):
        raise ValueError("something else")
    assert issubclass(Outer, Factor)
