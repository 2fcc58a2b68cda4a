"""The std at every size: what `fit` chooses, how accurate the std is, and what it costs.

Each part runs in a process of its own and compares with a referee: the normal matrix or the kernel in float64, written out
here from Jacobians of autograd's own, or, where no dense matrix fits, brackets that do not depend on each other.

python -m benchmarks.speed.sizes                       all parts, an hour on two cores
python -m benchmarks.speed.sizes --part 9000           one part
python -m benchmarks.speed.sizes --quick               every part in small, minutes
python -m benchmarks.speed.sizes --part device-exact --part device-weights --part device-draws --device cuda
"""

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import ntkgp
from benchmarks.measure import Peak, isolated
from benchmarks.speed.growth import exponent
from benchmarks.store import RESULTS, load, save
from ntkgp.posterior.exact.posterior import ExactPosterior
from ntkgp.posterior.lowrank.posterior import LowRankPosterior
from ntkgp.posterior.method import Method
from ntkgp.problem.operators import Operators

NOISE_VAR, QUERIES = 0.01, 500


class Function:
    """Batches of the same random function of eight inputs, made as they are read: nothing is stored."""

    def __init__(self, points: int, batch: int = 10_000, seed: int = 0):
        self.points, self.batch, self.seed = points, batch, seed

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        g = torch.Generator().manual_seed(self.seed)
        for start in range(0, self.points, self.batch):
            x = torch.randn(min(self.batch, self.points - start), 8, generator=g)
            yield x, target(x) + NOISE_VAR**0.5 * torch.randn(len(x), generator=g)

    def tensors(self) -> tuple[Tensor, Tensor]:
        """All points at once."""
        parts = list(self)
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def target(x: Tensor) -> Tensor:
    """Smooth, with a kink and two interactions."""
    return torch.sin(x[:, 0] * x[:, 1]) + x[:, 2].abs() - 0.5 * x[:, 3] * x[:, 4]


def network(width: int) -> nn.Module:
    """The paper's network."""
    return ntkgp.mlp(8, width=width, generator=torch.Generator().manual_seed(0))


def queries(count: int, seed: int = 1) -> Tensor:
    """Points like the data."""
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))


def jacobian(net: nn.Module, x: Tensor) -> Tensor:
    """J(x) in float64 by autograd, in the order of named_parameters; imports nothing of the library."""
    net = net.double()
    values = {name: p.detach() for name, p in net.named_parameters()}
    rows = vmap(grad(lambda v, point: functional_call(net, v, (point[None],)).squeeze()), (None, 0))(values, x.double())
    return torch.cat([part.flatten(1) for part in rows.values()], dim=1)


def referee(width: int, batches: Function, new: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and std of the exact posterior at new points, from the dense normal matrix in float64."""
    normal, sides = torch.zeros(()), torch.zeros(())
    for x, y in batches:
        for xs, ys in zip(x.split(2000), y.split(2000), strict=True):
            rows = jacobian(network(width), xs)
            normal = rows.T @ rows + normal
            sides = rows.T @ ys.double() + sides
    factor = torch.linalg.cholesky(normal / NOISE_VAR + torch.eye(len(normal), dtype=torch.float64))
    at = jacobian(network(width), new)
    mean = at @ torch.cholesky_solve((sides / NOISE_VAR).unsqueeze(1), factor)[:, 0]
    return mean, torch.linalg.solve_triangular(factor, at.T, upper=False).square().sum(dim=0).sqrt()


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What a function returns, and its seconds."""
    start = time.perf_counter()
    found = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return found, time.perf_counter() - start


def described(posterior: ntkgp.posterior.Posterior) -> dict[str, Any]:
    """What was chosen, and what it took."""
    found: dict[str, Any] = {"choice": posterior.choice, "parameters": posterior.problem.operators.parameters}
    if isinstance(posterior, LowRankPosterior):
        found |= {"seconds_per_stage": posterior.seconds, "iterations": posterior.solution.iterations, "side": posterior.side}
    return found


def against(p: ntkgp.Prediction, variance: Tensor) -> dict[str, Any]:
    """How far a prediction's std is from the exact one, and whether its bracket holds."""
    std, exact = p.std.double().cpu(), variance.double().cpu().sqrt()
    ratio, lower, upper = std / exact, p.lower.double().cpu(), p.upper.double().cpu()
    held = (lower <= exact.square() * (1 + 1e-6)) & (exact.square() <= upper * (1 + 1e-6))  # to rounding of float32 answers
    return {
        "std_error": float((std - exact).norm() / exact.norm()),
        "worst": float((ratio - 1).abs().max()),
        "ratio_5": float(ratio.quantile(0.05)),
        "ratio_95": float(ratio.quantile(0.95)),
        "inside": float(held.double().mean()),
        "upper_over_lower": float((upper / lower).median()),
        "confidence": p.confidence,
    }


def nine_thousand(points: int = 9000, width: int = 128, rank: int = 256, draws: int = 64) -> dict[str, Any]:
    """`Exact`, the automatic choice and draws on one problem; five sets of queries."""
    torch.set_num_threads(2)
    warnings.simplefilter("ignore", ntkgp.NumericalWarning)
    (x, y), net, new = Function(points).tensors(), network(width), queries(5 * QUERIES)
    ntkgp.fit(net, x[:500], y[:500], noise_var=NOISE_VAR).predict(new[:10])
    rows: dict[str, Any] = {}
    methods = {
        "Exact()": ntkgp.Exact(),
        "no method given": None,
        f"LowRank(rank={rank}, draws={draws})": ntkgp.LowRank(rank=rank, draws=draws),
        "LowRank()": ntkgp.LowRank(),
        "LowRank(rtol=0.03)": ntkgp.LowRank(rtol=0.03),
    }
    exact = None
    for name, method in methods.items():
        fit = lambda method=method: ntkgp.fit(  # noqa: E731
            net, x, y, noise_var=NOISE_VAR, method=method, generator=torch.Generator().manual_seed(1)
        )
        with Peak() as peak:
            posterior, fit_seconds = timed(fit)
            p, query_seconds = timed(lambda posterior=posterior: posterior.predict(new))
        exact = p.variance if exact is None else exact
        rows[name] = {
            "fit_seconds": fit_seconds, "query_seconds": query_seconds, "peak_bytes": peak.bytes,
            **described(posterior), **against(p, exact),
        }  # fmt: skip
        print(name, rows[name], flush=True)
        del posterior
    return {"points": points, "width": width, "queries": len(new), "rows": rows}


def exact_over_weights(points: int, width: int, batch: int = 10_000, as_batches: bool = False) -> dict[str, Any]:
    """No method given, from tensors or from batches; error of mean and std against the referee."""
    torch.set_num_threads(2)
    data, net, new = Function(points, batch), network(width), queries(QUERIES)
    ntkgp.fit(network(8), new, target(new), noise_var=NOISE_VAR).predict(new[:10])
    x, y = (data, None) if as_batches else data.tensors()
    with Peak() as peak:
        posterior, seconds = timed(lambda: ntkgp.fit(net, x, y, noise_var=NOISE_VAR))  # pyright: ignore[reportArgumentType]
        p, query_seconds = timed(lambda: posterior.predict(new))
    assert isinstance(posterior, ExactPosterior)
    return {
        "points": points, "width": width, "batches": as_batches, "fit_seconds": seconds, "query_seconds": query_seconds,
        "peak_bytes": peak.bytes, **described(posterior), "mean": p.mean.double().tolist(), "std": p.std.double().tolist(),
    }  # fmt: skip


def dense(points: int, width: int, batch: int = 10_000) -> dict[str, Any]:
    """The referee's mean and std, in a process of its own."""
    torch.set_num_threads(2)
    mean, std = referee(width, Function(points, batch), queries(QUERIES))
    return {"mean": mean.tolist(), "std": std.tolist()}


def with_errors(ours: dict[str, Any], true: dict[str, Any]) -> dict[str, Any]:
    """The errors in place of the values."""
    if "failed" in ours or "failed" in true:
        return {**ours, "referee": true.get("failed", "done")}
    found = {}
    for name in ("mean", "std"):
        one, other = (torch.tensor(values, dtype=torch.float64) for values in (ours.pop(name), true[name]))
        found[f"{name}_error"] = float((one - other).norm() / other.norm())
    return {**ours, **found}


def both_too_large(points: int = 40_000, width: int = 240, rank: int = 512, few: int = 20) -> dict[str, Any]:
    """Draws and `sharpen` where neither dense matrix fits; the products of `sharpen` are counted."""
    torch.set_num_threads(2)
    warnings.simplefilter("ignore", ntkgp.NumericalWarning)
    (x, y), net, new = Function(points).tensors(), network(width), queries(few)
    with Peak() as peak:
        posterior, fit_seconds = timed(
            lambda: ntkgp.fit(
                net,
                x,
                y,
                noise_var=NOISE_VAR,
                method=ntkgp.LowRank(rank=rank, draws=64),
                generator=torch.Generator().manual_seed(1),
            )
        )
        drawn, products, columns = posterior.predict(new), [0], [0]
        product = Operators.normal

        def counted(operators: Operators, v: Tensor) -> Tensor:
            products[0], columns[0] = products[0] + 1, columns[0] + v.shape[1]
            return product(operators, v)

        Operators.normal = counted  # pyright: ignore[reportAttributeAccessIssue]
        sharp, sharp_seconds = timed(lambda: posterior.sharpen(new, rtol=0.01))
        Operators.normal = product
    overlap = (drawn.lower <= sharp.upper) & (sharp.lower <= drawn.upper)
    return {
        "points": points, "width": width, "rank": rank, "queries": few, "fit_seconds": fit_seconds,
        "sharpen_seconds": sharp_seconds, "products": products[0], "columns": columns[0], "peak_bytes": peak.bytes,
        **described(posterior), **against(drawn, sharp.variance), "brackets_overlap": float(overlap.double().mean()),
        "widest_sharp_bracket": float((1 - sharp.lower / sharp.upper).max()),
    }  # fmt: skip


def growth(points: list[int], width: int) -> dict[str, Any]:
    """Fit time on the weight side as the points grow."""
    rows = [isolated("benchmarks.speed.sizes:exact_over_weights", {"points": n, "width": width}, timeout=1800) for n in points]
    rows = [{name: value for name, value in row.items() if name not in ("mean", "std")} for row in rows]
    slope = exponent(rows, "points", "fit_seconds") if all("fit_seconds" in row for row in rows) else None
    return {"width": width, "rows": rows, "time_exponent": slope}


def on_device(points: int, width: int, method: Method, few: int, device: str) -> dict[str, Any]:
    """One method for a float32 network; its accuracy at a few points by `sharpen`."""
    warnings.simplefilter("ignore", ntkgp.NumericalWarning)
    kind, new, g = torch.device(device).type, queries(QUERIES).to(device), torch.Generator().manual_seed(1)
    x, y = (part.to(device) for part in Function(points, 100_000).tensors())
    net = network(width).to(device)
    ntkgp.fit(network(8).to(device), x[:100], y[:100], noise_var=NOISE_VAR).predict(new[:10])
    with Peak(kind) as peak:
        posterior, seconds = timed(lambda: ntkgp.fit(net, x, y, noise_var=NOISE_VAR, method=method, generator=g))
        _, query_seconds = timed(lambda: posterior.predict(new))
    found = {
        "points": points, "width": width, "fit_seconds": seconds, "query_seconds": query_seconds, "peak_bytes": peak.bytes,
        "device": torch.cuda.get_device_name() if kind == "cuda" else "cpu", **described(posterior),
    }  # fmt: skip
    print(found, flush=True)
    p = posterior.predict(new[:few])
    sharp, found["sharpen_seconds"] = timed(lambda: posterior.sharpen(new[:few], rtol=0.01))
    widest = float((1 - sharp.lower / sharp.upper).max())
    return found | against(p, sharp.variance) | {"sharpened": few, "widest_sharp_bracket": widest}


def run(part: str, quick: bool, device: str) -> dict[str, Any]:
    here = "benchmarks.speed.sizes"
    if part == "9000":
        small = {"points": 900, "width": 32, "rank": 32}
        return isolated(f"{here}:nine_thousand", small if quick else {}, timeout=3600)
    if part == "weights":
        rows = {}
        for name, points, as_batches in (("tensors", 100_000, False), ("batches", 1_000_000, True)):
            size = {"points": points // 100 if quick else points, "width": 16 if quick else 64}
            ours = isolated(f"{here}:exact_over_weights", {**size, "as_batches": as_batches}, timeout=3600)
            rows[name] = with_errors(ours, isolated(f"{here}:dense", size, timeout=7200))
            print(name, rows[name], flush=True)
        return {"rows": rows}
    if part == "growth":
        return growth([1000, 2000, 4000] if quick else [12_500, 25_000, 50_000, 100_000], 16 if quick else 64)
    if part == "both":
        small = {"points": 1000, "width": 40, "rank": 64, "few": 5}
        return isolated(f"{here}:both_too_large", small if quick else {}, timeout=7200)
    if part == "device-exact":
        return on_device(*((1000, 64) if quick else (100_000, 512)), ntkgp.Exact("kernel"), 20, device)
    if part == "device-weights":
        return on_device(*((5000, 32) if quick else (1_000_000, 128)), ntkgp.Exact("weights"), 20, device)
    points, width, rank = (5000, 32, 64) if quick else (1_000_000, 512, 512)
    return on_device(points, width, ntkgp.LowRank(rank=rank, draws=64), 10, device)


PARTS = ("9000", "weights", "growth", "both")
GPU_PARTS = ("device-exact", "device-weights", "device-draws")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS + GPU_PARTS, action="append", help="one or more; all on the CPU if not given")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    name = ("sizes" if given.device == "cpu" else f"sizes-{given.device}") + ("-quick" if given.quick else "")
    for part in given.part or PARTS:
        found = run(part, given.quick, given.device)
        print(part, found, flush=True)
        before = load(name) if (RESULTS / f"{name}.jsonl").exists() else {}
        print(save(name, {**{key: value for key, value in before.items() if key != "environment"}, part: found}))


if __name__ == "__main__":
    main()
