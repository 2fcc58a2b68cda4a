"""A million points on one GPU: rank-512 posterior of the 8-512-512-1 network, and the rate of its products.

python -m benchmarks.speed.million                    the full run, on a GPU
python -m benchmarks.speed.million --points 20000 --rank 64 --width 128 --device cpu
"""

import argparse
import time
import warnings
from typing import Any

import torch

import ntkgp
from benchmarks.store import save
from ntkgp.posterior.lowrank.posterior import LowRankPosterior
from ntkgp.problem.build import build_problem
from ntkgp.problem.source import Source


def sync(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def problem(points: int, width: int, device: torch.device) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    net = ntkgp.mlp(8, width=width, generator=g).to(device)
    x = torch.randn(points, 8, generator=g)
    y = torch.sin(2 * x[:, 0]) * x[:, 1] + x[:, 2].abs() + 0.1 * torch.randn(points, generator=g)
    return net, x.to(device), y.to(device)


def product_rates(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, columns: int) -> dict[str, Any]:
    """JᵀJ V beside a plain matrix product in the same dtype and run."""
    device = x.device
    jacobian = build_problem(net, Source(x, y, 0.01)).operators.jacobian
    rows, parameters = jacobian.shape
    rates: dict[str, Any] = {}
    for name, dtype, precision in (
        ("float64", torch.float64, "highest"),
        ("float32", torch.float32, "highest"),
        ("tf32", torch.float32, "high"),
    ):
        torch.set_float32_matmul_precision(precision)
        size = 8192 if device.type == "cuda" else 1024
        a, b = torch.randn(size, size, dtype=dtype, device=device), torch.randn(size, size, dtype=dtype, device=device)
        v = torch.randn(parameters, columns, dtype=dtype, device=device)
        w = torch.ones(rows, dtype=dtype, device=device)
        plain = min(_time(lambda a=a, b=b: a @ b, device) for _ in range(3))
        ours = min(_time(lambda v=v, w=w: jacobian.normal(v, w), device) for _ in range(3))
        peak, rate = 2 * size**3 / plain / 1e12, 4 * rows * parameters * columns / ours / 1e12
        rates[name] = {"columns": columns, "seconds": ours, "tflops": rate, "matmul_tflops": peak, "fraction": rate / peak}
    torch.set_float32_matmul_precision("highest")
    return rates


def _time(call: Any, device: torch.device) -> float:
    start = sync(device)
    call()
    return sync(device) - start


def run(points: int, width: int, rank: int, queries: int, tol: float, power: int, device: torch.device) -> dict[str, Any]:
    net, x, y = problem(points, width, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    start = sync(device)
    method = ntkgp.LowRank(rank=rank, svd=ntkgp.linalg.RandomizedSVD(power=power, tol=None), solver=ntkgp.CGLS(tol=tol))
    posterior = ntkgp.fit(net, x, y, noise_var=0.01, method=method, generator=torch.Generator().manual_seed(1))
    fitted = sync(device)
    assert isinstance(posterior, LowRankPosterior)
    new = torch.randn(queries, 8, generator=torch.Generator().manual_seed(2)).to(device)
    p = posterior.predict(new)
    answered = sync(device)
    return {
        "points": points, "width": width, "rank": rank, "queries": queries,
        "parameters": posterior.problem.operators.parameters,
        "fit_seconds": fitted - start, "query_seconds": answered - fitted, "total_seconds": answered - start,
        "stages": posterior.seconds, "iterations": posterior.solution.iterations, "accuracy": posterior.solution.accuracy,
        "gradient_ratio": posterior.solution.gradient_ratio, "coupling": posterior.head.coupling, "tail": posterior.head.tail,
        "largest": float(posterior.head.values[0]), "last": float(posterior.head.values[-1]),
        "bracket": {"lower_over_upper_median": float((p.lower / p.upper).median()),
                    "ordered": bool((p.lower <= p.upper).all())},
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rank", type=int, default=512)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--tol", type=float, default=2.5e-4)
    parser.add_argument("--power", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rates", action="store_true", help="also measure the products")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    warnings.simplefilter("default")
    record: dict[str, Any] = {}
    if arguments.rates:
        net, x, y = problem(min(arguments.points, 200_000), arguments.width, device)
        record["rates"] = {str(columns): product_rates(net, x, y, columns) for columns in (1, 32, 512)}
        for columns, rates in record["rates"].items():
            for name, rate in rates.items():
                print(
                    f"JᵀJ V, {columns:>4} columns, {name:8}: {rate['tflops']:6.1f} TFLOP/s, "
                    f"{rate['fraction']:.0%} of a matrix product"
                )
    record["run"] = run(
        arguments.points, arguments.width, arguments.rank, arguments.queries, arguments.tol, arguments.power, device
    )
    for key, value in record["run"].items():
        print(f"{key:>16}: {value}")
    print(save(f"million-{device.type}", record))


if __name__ == "__main__":
    main()
