"""Networks of infinite width: how fast finite ones approach them, and what the marginal likelihood and its gradient cost.

python -m benchmarks.speed.infinite            minutes on two cores
python -m benchmarks.speed.infinite --quick
"""

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import ntkgp
from benchmarks.measure import Peak, isolated
from benchmarks.speed.growth import exponent
from benchmarks.store import save
from ntkgp.networks import Erf, InputScales
from ntkgp.problem.build import build_problem
from ntkgp.problem.source import Source
from ntkgp.tuning.likelihood import NOISE, PRIOR, Likelihood

ACTIVATIONS: dict[str, nn.Module] = {"ReLU": nn.ReLU(), "erf": Erf(), "GELU": nn.GELU()}
FEATURES = 8


def approach(widths: list[int], networks: int) -> dict[str, Any]:
    """The relative error of the kernel of finite networks at 32 points, root mean square over networks."""
    torch.set_num_threads(2)
    x = torch.randn(32, FEATURES, generator=torch.Generator().manual_seed(0))
    found: dict[str, Any] = {}
    for name, activation in ACTIVATIONS.items():
        infinite = ntkgp.kernel(ntkgp.mlp(FEATURES, width=math.inf, activation=activation).double(), x.double())
        rows = []
        for width in widths:
            errors = []
            for seed in range(networks):
                net = ntkgp.mlp(FEATURES, width=width, activation=activation, generator=torch.Generator().manual_seed(seed))
                errors.append(float((ntkgp.kernel(net, x).double() - infinite).norm() / infinite.norm()))
            rows.append({"width": width, "error": float(torch.tensor(errors).square().mean().sqrt())})
        found[name] = {"rows": rows, "slope": exponent(rows, "width", "error")}
    return {"networks": networks, "activations": found}


def gradient(points: int, activation: str) -> dict[str, Any]:
    """Seconds of the parts of one evaluation, best of three, and the peak memory of a whole one."""
    torch.set_num_threads(2)
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(points, FEATURES, generator=g).double(), torch.randn(points, generator=g).double()
    net = nn.Sequential(
        InputScales(torch.ones(FEATURES)), ntkgp.mlp(FEATURES, width=math.inf, activation=ACTIVATIONS[activation])
    )
    problem = build_problem(net, Source(x, y, 1.0), dtype=torch.float64)
    likelihood = Likelihood(problem, [list(problem.network.anchor)])
    logs = {PRIOR: torch.zeros(1).double(), NOISE: torch.zeros(1).double(), "0.scale": torch.zeros(FEATURES).double()}
    leaves = {name: log.requires_grad_() for name, log in logs.items()}
    likelihood.gradient(leaves)
    matrix = likelihood.kernels(leaves).matrix(torch.ones(1).double())
    matrix.diagonal().add_(1.0)
    seconds = _seconds(likelihood, leaves, matrix)
    del matrix
    with Peak() as peak:
        likelihood.gradient(leaves)
    found = {"points": points, "activation": activation, "seconds": seconds}
    return {**found, "peak_bytes": peak.bytes, "square_bytes": 8 * points**2}


def _seconds(likelihood: Likelihood, leaves: dict[str, Tensor], matrix: Tensor) -> dict[str, float]:
    """Of each part of an evaluation."""
    one, weights = torch.ones(1, dtype=torch.float64), matrix.clone()
    return {
        "Cholesky factorisation": best(lambda: torch.linalg.cholesky(matrix)),
        "kernel": best(lambda: likelihood.kernels(leaves).matrix(one)),
        "gradient of the kernel": best(lambda: likelihood.kernels(leaves).backward(one, weights)),
        "inverse": best(lambda: torch.cholesky_inverse(matrix)),
        "whole evaluation": best(lambda: likelihood.gradient(leaves)),
    }


def best(work: Callable[[], object]) -> float:
    """The least seconds of three calls."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    here, sizes = "benchmarks.speed.infinite", [200] if given.quick else [1000, 2000, 4000]
    widths = [32, 64] if given.quick else [64, 256, 1024, 4096, 8192]
    some = {"widths": widths, "networks": 2 if given.quick else 8}
    found: dict[str, Any] = {"approach": isolated(f"{here}:approach", some, timeout=1800)}
    print(found["approach"], flush=True)
    found["gradient"] = []
    for points in sizes:
        for activation in ACTIVATIONS:
            found["gradient"].append(isolated(f"{here}:gradient", {"points": points, "activation": activation}, timeout=600))
            print(found["gradient"][-1], flush=True)
    print(save("infinite-quick" if given.quick else "infinite", found))


if __name__ == "__main__":
    main()
