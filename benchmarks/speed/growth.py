"""How time and memory of `LowRank` grow with the points N, the parameters P, the rank K and the outputs C.

Each setting is fitted and asked 100 queries in a process of its own, with 30 solver iterations whatever they reach. Memory is
counted beyond the data and the layer factors; the C library gives freed blocks back at once, or else the heap's holes would be
counted, at some cost in time. Time is one thread's CPU time, which other processes do not disturb; with --threads 2 or on a GPU
it is wall-clock time. The series over P, K and C (and one over N) look for the head in weight space throughout; series
'N' lets the library choose, as a user would have it.

python -m benchmarks.speed.growth                      some minutes
python -m benchmarks.speed.growth --quick              a minute, small N
python -m benchmarks.speed.growth --device cuda
"""

import argparse
import math
import warnings
from typing import Any

import torch

import ntkgp
from benchmarks.measure import Peak, clock_of, isolated
from benchmarks.store import save
from ntkgp.posterior.lowrank.posterior import LowRankPosterior

ITERATIONS, QUERIES = 30, 100
Setting = dict[str, Any]


def measure(points: int, width: int, rank: int, outputs: int, weight_side: bool, threads: int, device: str) -> dict[str, Any]:
    """Fit and query one setting; runs in a process of its own."""
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore", ntkgp.NumericalWarning)  # the number of iterations is fixed on purpose
    g = torch.Generator().manual_seed(0)
    net = ntkgp.mlp(8, outputs, width=width, generator=g).to(device)
    method = ntkgp.LowRank(
        rank=rank, solver=ntkgp.CGLS(tol=1e-300, max_iterations=ITERATIONS), side="weights" if weight_side else None
    )

    def fit(count: int) -> tuple[ntkgp.posterior.Posterior, int]:
        x = torch.randn(count, 8, generator=g).to(device)
        y = torch.stack([torch.sin(2 * x[:, c % 8]) * x[:, (c + 1) % 8] for c in range(outputs)], dim=1)
        size = (x.numel() + y.numel()) * x.element_size()
        return ntkgp.fit(net, x, y, noise_var=0.01, method=method, generator=torch.Generator().manual_seed(1)), size

    new = torch.randn(QUERIES, 8, generator=g).to(device)
    fit(max(2 * rank, 256))[0].predict(new)
    clock = clock_of(threads, device)
    with Peak(device) as peak:
        start = clock()
        posterior, data = fit(points)
        posterior.predict(new).variance.cpu()
        seconds = clock() - start
    assert isinstance(posterior, LowRankPosterior)
    problem = posterior.problem
    factors = points * problem.operators.finite.chunk(problem.network.cast(problem.data.x[:1])).bytes_per_point
    return {
        "parameters": problem.operators.parameters, "seconds": seconds, "stages": posterior.seconds, "peak_bytes": peak.bytes,
        "data_bytes": data, "factor_bytes": factors, "beyond_bytes": peak.bytes - data - factors,
        "kernel_side": posterior.side == "kernel", "iterations": posterior.solution.iterations,
    }  # fmt: skip


def settings(quick: bool) -> dict[str, list[Setting]]:
    """Each series and its settings."""
    scale = 10 if quick else 1
    base: Setting = {"points": 10_000 // scale, "width": 128, "rank": 32, "outputs": 1, "weight_side": True}
    points = [10_000 // scale, 30_000 // scale, 100_000 // scale]
    return {
        "N": [{**base, "points": n, "weight_side": False} for n in points],
        "N, weight side": [{**base, "points": n} for n in points],
        "P": [{**base, "width": width} for width in (32, 64, 128, 256)],
        "K": [{**base, "rank": rank} for rank in (16, 32, 64, 128)],
        "C": [{**base, "outputs": outputs} for outputs in (1, 2, 4)],
    }


AXES = {"N": "points", "N, weight side": "points", "P": "parameters", "K": "rank", "C": "outputs"}


def exponent(rows: list[dict[str, Any]], axis: str, quantity: str) -> float | None:
    """The slope of a least-squares line through the logarithms; None without two positive values."""
    pairs = [(math.log(row[axis]), math.log(row[quantity])) for row in rows if row.get(quantity, 0) > 0]
    if len(pairs) < 2:
        return None
    mx, my = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
    spread = sum((x - mx) ** 2 for x, _ in pairs)
    return sum((x - mx) * (y - my) for x, y in pairs) / spread if spread else None


def run(quick: bool, threads: int, device: str) -> dict[str, Any]:
    done: dict[str, dict[str, Any]] = {}
    series = {}
    for name, choices in settings(quick).items():
        rows = []
        for setting in choices:
            key = str(setting)
            if key not in done:
                done[key] = isolated(
                    "benchmarks.speed.growth:measure", {**setting, "threads": threads, "device": device}, eager_release=True
                )
                if done[key].get("kernel_side") is False:  # the choice was that of the weight side: no need to run it again
                    done[str({**setting, "weight_side": True})] = done[key]
            rows.append({**setting, **done[key]})
            result = done[key]
            if "failed" in result:
                print(f"{name}: {setting} failed: {result['failed']}", flush=True)
            else:
                beyond, total = result["beyond_bytes"] / 2**20, result["peak_bytes"] / 2**20
                print(f"{name}: {setting}: {result['seconds']:.1f} s, {total:.0f} MiB, {beyond:.0f} beyond data and factors "
                      f"(kernel side: {result['kernel_side']})", flush=True)  # fmt: skip
        axis, good = AXES[name], [row for row in rows if "failed" not in row]
        series[name] = {
            "axis": axis, "rows": rows, "time_exponent": exponent(good, axis, "seconds"),
            "memory_exponent": exponent(good, axis, "peak_bytes"), "beyond_exponent": exponent(good, axis, "beyond_bytes"),
        }  # fmt: skip
        print(name, {key: value for key, value in series[name].items() if key.endswith("exponent")}, flush=True)
    return {"device": device, "iterations": ITERATIONS, "queries": QUERIES, "threads": threads, "series": series}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the points")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(save(f"growth-{arguments.device}", run(arguments.quick, arguments.threads, arguments.device)))


if __name__ == "__main__":
    main()
