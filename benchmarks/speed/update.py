"""More data: `posterior.update` beside a fresh `fit`, in one run; and whether hundreds or thousands of single updates drift.

One point is added to N, again and again, and all N + 1 points are fitted from scratch, in turn; the medians are compared. Time
is one thread's CPU time, which other processes do not disturb; with more threads wall-clock time. Memory is the highest
resident set above that before the call, in a process of its own; an update that finds room writes one row, one that does not
(every 16th, 32nd, ...) also moves the rows that came later.

python -m benchmarks.speed.update                      some minutes
python -m benchmarks.speed.update --quick              a minute, N = 400
"""

import argparse
import statistics
from typing import Any

import torch
from torch import Tensor, nn

import ntkgp
from benchmarks.measure import Peak, clock_of, isolated
from benchmarks.store import save
from ntkgp.posterior.exact.posterior import ExactPosterior
from ntkgp.posterior.lowrank.posterior import LowRankPosterior

METHODS: dict[str, ntkgp.Exact | ntkgp.LowRank] = {
    "Exact()": ntkgp.Exact(),
    "LowRank(rank=32)": ntkgp.LowRank(rank=32, solver=ntkgp.CGLS(tol=1e-9)),
    "LowRank(rank=128)": ntkgp.LowRank(rank=128),
    "LowRank(rank=128, draws=8)": ntkgp.LowRank(rank=128, draws=8),
}
FEATURES = 8


def data(points: int, low_rank: bool = False, width: int | None = None) -> tuple[nn.Module, Tensor, Tensor]:
    """Eight inputs and 512 hidden units; for low rank two inputs and 256, where a head of 128 directions has most of it."""
    g = torch.Generator().manual_seed(0)
    net = ntkgp.mlp(2 if low_rank else FEATURES, width=width or (256 if low_rank else 512), generator=g)
    x = torch.randn(points, 2 if low_rank else FEATURES, generator=g, dtype=torch.float64)
    return net, x, torch.sin(2 * x[:, 0]) * x[:, 1] + 0.3 * torch.randn(points, generator=g, dtype=torch.float64)


def error(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


def fit(method: str, net: nn.Module, x: Tensor, y: Tensor) -> ntkgp.posterior.Posterior:
    return ntkgp.fit(net, x, y, noise_var=0.1, method=METHODS[method], generator=torch.Generator().manual_seed(1))


def side_by_side(method: str, points: int, repeats: int, threads: int) -> dict[str, Any]:
    """Seconds of an update by one point and of a fresh fit to the same data, in turn."""
    torch.set_num_threads(threads)
    clock, (net, x, y) = clock_of(threads), data(points + repeats, "LowRank" in method)
    query = torch.randn(200, x.shape[1], generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    posterior = fresh = fit(method, net, x[:points], y[:points])
    posterior.update(x[points : points + 1], y[points : points + 1])  # the first call of all is slower
    updates, fits = [], []
    for k in range(points, points + repeats):
        start = clock()
        posterior = posterior.update(x[k : k + 1], y[k : k + 1])
        updates.append(clock() - start)
        start = clock()
        fresh = fit(method, net, x[: k + 1], y[: k + 1])
        fits.append(clock() - start)
    a, b = posterior.predict(query), fresh.predict(query)
    update, whole = statistics.median(updates), statistics.median(fits)
    row = {"method": method, "points": points, "update_seconds": update, "fit_seconds": whole, "ratio": whole / update,
           "updates": updates, "fits": fits, "mean_error": error(a.mean, b.mean),
           "variance_error": error(a.variance, b.variance)}  # fmt: skip
    if isinstance(posterior, LowRankPosterior) and isinstance(fresh, LowRankPosterior):
        row |= {"stages": posterior.seconds, "fit_stages": fresh.seconds, "iterations": posterior.solution.iterations,
                "fit_iterations": fresh.solution.iterations, "refined": posterior.refined,
                "bracket": float(((a.upper - a.lower) / a.upper).mean()),
                "fit_bracket": float(((b.upper - b.lower) / b.upper).mean())}  # fmt: skip
    return row


def memory(method: str, points: int, threads: int) -> dict[str, Any]:
    """Most memory of the fit, and of the third update by one point."""
    torch.set_num_threads(threads)
    net, x, y = data(points + 3, "LowRank" in method)
    with Peak() as whole:
        posterior = fit(method, net, x[:points], y[:points])
    for k in (0, 1):
        posterior = posterior.update(x[points + k : points + k + 1], y[points + k : points + k + 1])
    with Peak() as one:
        posterior.update(x[points + 2 :], y[points + 2 :])
    return {"fit_bytes": whole.bytes, "update_bytes": one.bytes}


def drift(method: str, points: int, updates: int, threads: int, width: int | None = None) -> dict[str, Any]:
    """Single updates in a row, then one fresh fit: how far apart they are; and a bracket that misses the exact variance."""
    torch.set_num_threads(threads)
    clock, (net, x, y) = clock_of(threads), data(points + updates, "LowRank" in method, width)
    query = torch.randn(200, x.shape[1], generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    posterior = fit(method, net, x[:points], y[:points])
    start = clock()
    for k in range(points, points + updates):
        posterior = posterior.update(x[k : k + 1], y[k : k + 1])
    row: dict[str, Any] = {"method": method, "points": points, "updates": updates, "seconds": clock() - start}
    fresh, exact = fit(method, net, x, y), fit("Exact()", net, x, y).predict(query)
    a, b = posterior.predict(query), fresh.predict(query)
    row |= {"mean_error": error(a.mean, b.mean), "variance_error": error(a.variance, b.variance)}
    row |= {"mean_off_exact": error(a.mean, exact.mean)}
    if isinstance(posterior, ExactPosterior):
        covariance = error(posterior.covariance(query), fresh.covariance(query))
        return {**row, "covariance_error": covariance, "refactored": posterior.refactored,
                "backward_error": posterior.backward_error}  # fmt: skip
    assert isinstance(posterior, LowRankPosterior)
    missed = int(((exact.variance < a.lower * (1 - 1e-9)) | (exact.variance > a.upper * (1 + 1e-9))).sum())
    return {**row, "brackets_missed": missed, "refined": posterior.refined}


def draws(count: int, width: int, threads: int) -> dict[str, Any]:
    """Most memory and seconds of drawing many functions at once, and of their values at ten points."""
    torch.set_num_threads(threads)
    g = torch.Generator().manual_seed(0)
    net, x = ntkgp.mlp(2, width=width, generator=g), torch.randn(50, 2, generator=g, dtype=torch.float64)
    posterior, clock = ntkgp.fit(net, x, x[:, 0].sin(), noise_var=0.01), clock_of(threads)
    posterior.sample(1)
    with Peak() as peak:
        start = clock()
        f = posterior.sample(count, generator=g)
        drawn = clock() - start
        f(x[:10])
        seconds = clock() - start
    P = sum(p.numel() for p in net.parameters())
    return {"count": count, "parameters": P, "draw_seconds": drawn, "value_seconds": seconds - drawn, "peak_bytes": peak.bytes,
            "numbers_per_draw_and_parameter": peak.bytes / 8 / count / P}  # fmt: skip


def run(quick: bool, threads: int) -> dict[str, Any]:
    def measured(function: str, eager_release: bool = False, **arguments: Any) -> dict[str, Any]:
        target = f"benchmarks.speed.update:{function}"
        return isolated(target, {**arguments, "threads": threads}, timeout=3600, eager_release=eager_release)

    result: dict[str, Any] = {"threads": threads}
    result["drift"] = [measured("drift", method="Exact()", points=400 if quick else 2000, updates=100 if quick else 500)]
    for method, width, updates in (("Exact()", 128, 5000), ("LowRank(rank=32)", 32, 2000)):
        updates = 100 if quick else updates
        result["drift"].append(measured("drift", method=method, points=100, updates=updates, width=width))
    print(*result["drift"], sep="\n", flush=True)
    result["draws"] = measured("draws", True, count=10_000 if quick else 100_000, width=16)
    print(result["draws"], flush=True)
    result["one point"] = []
    for method, points in {"Exact()": 2000, "LowRank(rank=128)": 2000, "LowRank(rank=128, draws=8)": 5000}.items():
        points, repeats = (points // 5, 3) if quick else (points, 9 if method == "Exact()" else 3)
        row = measured("side_by_side", method=method, points=points, repeats=repeats)
        row |= measured("memory", True, method=method, points=points)
        result["one point"].append(row)
        print({key: value for key, value in row.items() if key not in ("updates", "fits")}, flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the points")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(save("update" + ("-quick" if arguments.quick else ""), run(arguments.quick, arguments.threads)))


if __name__ == "__main__":
    main()
