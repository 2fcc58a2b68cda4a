"""The kernel matrix of the 8-512-512-1 network by layer factors, against per-sample Jacobians in ``torch.func``, in one run.

python -m benchmarks.speed.kernel                      N = 1024, two threads, float32
python -m benchmarks.speed.kernel --points 128 --width 64
python -m benchmarks.speed.kernel --neural-tangents PYTHON     also by neural-tangents, in an environment of its own; PYTHON is
                                                               an interpreter with neural-tangents 0.6.5 and jax 0.4.30
"""

import argparse
import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

import ntkgp
from benchmarks.measure import Peak, isolated
from benchmarks.methods import neural_tangents_kernel
from benchmarks.store import save
from ntkgp.tangent import tangent
from ntkgp.tangent.factors.recording import LayerFactors
from ntkgp.tangent.opening import open_network
from ntkgp.tangent.tangent import Tangent

CHUNKS = (None, 64)  # samples of vmap at a time: the rival's better one counts


def problem(points: int, width: int) -> tuple[nn.Module, Tensor]:
    g = torch.Generator().manual_seed(0)
    return ntkgp.mlp(8, width=width, generator=g), torch.randn(points, 8, generator=g)


def jacobian_contraction(net: nn.Module, x: Tensor, chunk: int | None = None) -> Tensor:
    """K by per-sample Jacobians: vmap(jacrev) gives the N×P array, contracted parameter by parameter."""
    params = {name: p.detach() for name, p in net.named_parameters()}

    def single(params: dict[str, Tensor], point: Tensor) -> Tensor:
        return functional_call(net, params, (point.unsqueeze(0),)).flatten()

    jacobian = vmap(jacrev(single), in_dims=(None, 0), chunk_size=chunk)(params, x)
    total = x.new_zeros(len(x), len(x))
    for part in jacobian.values():
        rows = part.flatten(1)
        total.addmm_(rows, rows.T)
    return total


def best(call: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """The least time of some calls, and what the last one returned."""
    times, result = [], torch.empty(0)
    for _ in range(repeats):
        start = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - start)
    return min(times), result


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Without the checks that guard the layer factors: at a few points, at every point, and of batches of several sizes."""
    record = LayerFactors.at

    def without(self: LayerFactors, x: Tensor, outputs: int, check: bool = True) -> Any:
        return record(self, x, outputs, check=False)

    with (
        mock.patch.object(LayerFactors, "at", without),
        mock.patch.object(Tangent, "_check_batch"),
        mock.patch.object(Tangent, "_inspect"),
        mock.patch.object(tangent, "_broken_rules", return_value={}),
    ):
        yield


def in_turns(call: Callable[[], object], repeats: int) -> tuple[float, float]:
    """The least times with and without the checks; the two take turns, so that both see the same machine."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(repeats):
        for checked in (True, False):
            with contextlib.nullcontext() if checked else unchecked():
                times[checked].append(best(call, 1)[0])
    return min(times[True]), min(times[False])


def peak_memory(points: int, width: int, threads: int, rival: bool) -> dict[str, Any]:
    """Peak memory of one call, after a call on a few points; in a process of its own."""
    torch.set_num_threads(threads)
    net, x = problem(points, width)
    compute = jacobian_contraction if rival else ntkgp.kernel
    compute(net, x[:8].clone())
    with Peak() as peak:
        compute(net, x)
    return {"bytes": peak.bytes}


def neural_tangents(python: str, net: nn.Module, x: Tensor, matrix: Tensor) -> dict[str, Any]:
    """Times of neural-tangents' implementations on the same weights, and how far its matrix is from ours."""
    layers = [layer for layer in net.modules() if hasattr(layer, "gain")]
    arrays = {"x": x.numpy(), "gains": np.array([layer.gain for layer in layers])}
    for i, layer in enumerate(layers):
        arrays |= {f"{name}{i}": p.detach().numpy() for name, p in layer.named_parameters()}
    script = Path(neural_tangents_kernel.__file__)
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "case.npz", allow_pickle=False, **arrays)
        done = subprocess.run([python, str(script), folder], capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            return {"failed": (done.stderr.strip().splitlines() or ["?"])[-1][:200]}
        theirs = torch.from_numpy(np.load(Path(folder) / "kernel.npy"))
    return {**json.loads(done.stdout.splitlines()[-1]), "difference": float((theirs - matrix).norm() / matrix.norm())}


def run(points: int, width: int, threads: int, jax_python: str | None = None) -> dict[str, Any]:
    torch.set_num_threads(threads)
    net, x = problem(points, width)
    ntkgp.kernel(net, x)
    matrix = ntkgp.kernel(net, x)
    ours, bare = in_turns(lambda: ntkgp.kernel(net, x), 25)
    print(f"ours: {ours:.4f} s, {bare:.4f} s without the checks", flush=True)
    few = x[: min(1000, points)]
    targets = few.sum(dim=1).sin()
    exact, exact_bare = in_turns(lambda: ntkgp.fit(net, few, targets, noise_var=0.01, method=ntkgp.Exact()), 15)
    print(f"Exact on {len(few)} points: {exact:.4f} s, {exact_bare:.4f} s without the checks", flush=True)
    network, outputs = open_network(net, x)
    chunk = Tangent(network, x, outputs).chunk(network.cast(x[:1]))
    jacobian_contraction(net, x[:8])
    rival, reference = float("inf"), matrix
    for size in CHUNKS:
        seconds, reference = best(lambda size=size: jacobian_contraction(net, x, size), 2)
        rival = min(rival, seconds)
        print(f"vmap(jacrev), {size or 'all'} samples at a time: {seconds:.2f} s", flush=True)
    nt = {"neural_tangents": neural_tangents(jax_python, net, x, matrix)} if jax_python else {}
    setting = {"points": points, "width": width, "threads": threads}
    square, factors = 4 * points**2, chunk.bytes_per_point * points
    target = "benchmarks.speed.kernel:peak_memory"
    peaks = {
        name: isolated(target, {**setting, "rival": name == "rival"}, eager_release=True)["bytes"] for name in ("ours", "rival")
    }
    return {
        **setting, "parameters": sum(p.numel() for p in net.parameters()), "dtype": "float32",
        "seconds": ours, "seconds_without_check": bare, "rival_seconds": rival,
        "ratio": rival / ours, "ratio_without_check": rival / bare,
        "exact_points": len(few), "exact_seconds": exact, "exact_seconds_without_check": exact_bare,
        "difference": float((matrix - reference).norm() / reference.norm()),
        "peak_bytes": peaks["ours"], "rival_peak_bytes": peaks["rival"], "factor_bytes": factors, "square_bytes": square,
        "squares_beyond_factors": (peaks["ours"] - factors) / square, **nt,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=1024)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--neural-tangents", metavar="PYTHON", help="an interpreter that has neural-tangents")
    arguments = parser.parse_args()
    record = run(arguments.points, arguments.width, arguments.threads, arguments.neural_tangents)
    for key, value in record.items():
        print(f"{key:>22}: {value}")
    print(save("kernel", record))


if __name__ == "__main__":
    main()
