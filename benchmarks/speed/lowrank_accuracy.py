"""`LowRank` against `Exact` in float64 at N = 4000 and P > 60,000: the mean, the bracket, and the variance at full rank.

python -m benchmarks.speed.lowrank_accuracy [--device cuda]
"""

import argparse
import time
from typing import Any

import torch

import ntkgp
from benchmarks.store import save
from ntkgp.posterior.lowrank.posterior import LowRankPosterior


def relative(value: torch.Tensor, reference: torch.Tensor) -> float:
    return float((value - reference).norm() / reference.norm())


def run(points: int, width: int, ranks: list[int], device: torch.device) -> dict[str, Any]:
    g = torch.Generator().manual_seed(0)
    net = ntkgp.mlp(8, width=width, generator=g).double().to(device)
    x = torch.randn(points, 8, generator=g, dtype=torch.float64).to(device)
    y = torch.sin(2 * x[:, 0]) * x[:, 1] + x[:, 2].abs()
    new = 1.5 * torch.randn(500, 8, generator=g, dtype=torch.float64).to(device)
    start = time.perf_counter()
    exact = ntkgp.fit(net, x, y, noise_var=0.01, method=ntkgp.Exact()).predict(new)
    exact_seconds = time.perf_counter() - start
    rows = []
    for rank in ranks:
        start = time.perf_counter()
        method = ntkgp.LowRank(rank=rank, solver=ntkgp.CGLS(tol=1e-8, max_iterations=5000))
        posterior = ntkgp.fit(net, x, y, noise_var=0.01, method=method, generator=torch.Generator().manual_seed(1))
        assert isinstance(posterior, LowRankPosterior)
        p = posterior.predict(new)
        inside = (p.lower <= exact.variance * (1 + 1e-9)) & (exact.variance <= p.upper * (1 + 1e-9))
        rows.append({
            "rank": rank, "mean_error": relative(p.mean, exact.mean), "variance_error": relative(p.variance, exact.variance),
            "inside": float(inside.double().mean()), "lower_over_exact": float((p.lower / exact.variance).median()),
            "upper_over_exact": float((p.upper / exact.variance).median()), "iterations": posterior.solution.iterations,
            "seconds": time.perf_counter() - start, "seconds_over_exact": (time.perf_counter() - start) / exact_seconds,
        })  # fmt: skip
        print(rows[-1], flush=True)
    parameters = sum(p.numel() for p in net.parameters())
    return {"points": points, "parameters": parameters, "device": str(device), "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=4000)
    parser.add_argument("--width", type=int, default=240)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 512, 4000])
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    record = run(arguments.points, arguments.width, arguments.ranks, torch.device(arguments.device))
    print(save(f"lowrank_accuracy-{arguments.device}", record))


if __name__ == "__main__":
    main()
