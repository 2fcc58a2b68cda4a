"""One fit over several processes: the same answer, the bytes it moves, and what a second process is worth.

python -m benchmarks.speed.distributed                all of it, some minutes on two quiet cores
python -m benchmarks.speed.distributed --small        a smoke test

Each process has one thread. Efficiency is judged by wall-clock time, the median of interleaved repetitions, and beside it by
the CPU time of the busiest rank, which other users of the machine disturb less and which leaves out waiting.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist

import ntkgp
from benchmarks.store import load, save
from ntkgp.posterior.lowrank.posterior import LowRankPosterior
from ntkgp.problem.build import build_problem
from ntkgp.problem.source import Source

STEPS = 8  # products G v of a timing, as many as iterations of the solver
TIGHT = ntkgp.CGLS(tol=1e-11, max_iterations=5000)


def data(points: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(points, 8, generator=g, dtype=dtype)
    return x, torch.sin(2 * x[:, 0]) * x[:, 1] + 0.1 * torch.randn(points, generator=g, dtype=dtype)


def network(width: int) -> torch.nn.Module:
    return ntkgp.mlp(8, width=width, activation=torch.nn.SiLU(), generator=torch.Generator().manual_seed(1)).double()


def timed(rank: int, size: int, points: int, width: int, columns: int) -> dict[str, Any]:
    """Seconds, by the wall and of this process, of STEPS products with G over all points; and of their sums alone."""
    group = ntkgp.distributed.Group()
    x, y = data(points, torch.float64)
    here = slice(points * rank // size, points * (rank + 1) // size)
    problem = build_problem(network(width), Source(x[here], y[here], 0.01, group))
    v = torch.randn(problem.operators.parameters, columns, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    problem.operators.normal(v)  # computes the factors
    group.any(False)
    wall, cpu, before = time.perf_counter(), time.process_time(), group.traffic.reduced
    for _ in range(STEPS):
        problem.operators.normal(v)
    group.any(False)
    wall, cpu, moved = time.perf_counter() - wall, time.process_time() - cpu, group.traffic.reduced - before
    sums = time.perf_counter()
    for _ in range(STEPS):
        group.sum(v)
    sums = time.perf_counter() - sums
    return {"wall": wall / STEPS, "cpu": cpu / STEPS, "sum": sums / STEPS, "bytes": moved // STEPS, "parameters": len(v)}


def fitted(rank: int, size: int, points: int, width: int, rank_of_head: int) -> dict[str, Any]:
    """Predictions at 50 points, and the bytes of every stage."""
    x, y = data(points, torch.float64)
    group = None if size == 0 else ntkgp.distributed.Group()
    here = slice(None) if size == 0 else slice(points * rank // size, points * (rank + 1) // size)
    method = ntkgp.LowRank(rank=rank_of_head, draws=4, solver=TIGHT, side="weights")
    posterior = ntkgp.fit(
        network(width), x[here], y[here], noise_var=0.01, method=method, generator=torch.Generator().manual_seed(3), group=group
    )
    assert isinstance(posterior, LowRankPosterior)
    p = posterior.predict(data(50, torch.float64)[0] * 1.5)
    answer = {name: getattr(p, name).tolist() for name in ("mean", "variance", "lower", "upper")}
    parameters = posterior.problem.operators.parameters
    traffic = {} if group is None else dict(vars(group.traffic))
    return {**answer, "parameters": parameters, "iterations": posterior.solution.iterations, "traffic": traffic}


def spawn(size: int, task: str, **arguments: Any) -> list[dict[str, Any]]:
    """What a task returns on each rank; size 0 is one process without a group."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": str(max(1, size))}
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.speed.distributed", "--worker",
                 json.dumps([task, rank, size, folder, arguments])],
                stdout=subprocess.PIPE, text=True, env=environment,
            ) for rank in range(max(1, size))
        ]  # fmt: skip
        found = [process.communicate()[0] for process in processes]
        assert all(process.returncode == 0 for process in processes)
        return [json.loads(text.strip().splitlines()[-1]) for text in found]


def worker(text: str) -> None:
    task, rank, size, folder, arguments = json.loads(text)
    torch.set_num_threads(1)
    if size:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    found = {"timed": timed, "fitted": fitted}[task](rank, size, **arguments)
    print(json.dumps(found), flush=True)
    if size:
        dist.destroy_process_group()


def expected_bytes(parameters: int, iterations: int, head: int, tail: int, passes: int) -> int:
    """docs/distributed.md: what a fit sums, without restarts of the solver beyond its first and last look."""
    wide = min(head + 10, parameters)
    columns = passes * wide + wide + 4 * 10 + (1 + tail) + tail + (1 + tail) * iterations
    return 8 * parameters * columns


def equality(small: bool) -> dict[str, Any]:
    options = {"points": 200 if small else 2000, "width": 16 if small else 32, "rank_of_head": 16 if small else 64}
    alone = spawn(0, "fitted", **options)[0]
    rows = {}
    for size in (1, 2, 3, 4):
        each = spawn(size, "fitted", **options)
        errors = {
            name: max(abs(a - b) for one in each for a, b in zip(one[name], alone[name], strict=True))
            / max(abs(value) for value in alone[name])
            for name in ("mean", "variance", "lower", "upper")
        }
        traffic, P, S = each[0]["traffic"], each[0]["parameters"], 5
        floor = expected_bytes(P, each[0]["iterations"], options["rank_of_head"], 4, passes=4)
        # A look at the residual afresh is one product more; the count of looks is what is left over.
        looks, rest = divmod(traffic["reduced"] - floor, 8 * P * S)
        rows[size] = {
            "errors": errors, "iterations": each[0]["iterations"], "parameters": P, "summed_bytes": traffic["reduced"],
            "formula_bytes": floor + looks * 8 * P * S, "fresh_residuals": looks, "beside_formula_bytes": rest,
            "bytes_per_iteration": 8 * P * S, "protocol_bytes": traffic["protocol"],
        }  # fmt: skip
        worst = max(errors.values())
        print(f"{size} processes: errors up to {worst:.1e}, {traffic['reduced']} bytes summed, {rest} beside the formula")
    return {"settings": options, "by_size": rows}


def scaling(small: bool, repetitions: int) -> dict[str, Any]:
    points, width, columns = (400, 16, 1) if small else (8_000, 128, 4)
    runs: dict[str, list[list[dict[str, Any]]]] = {"one": [], "two, strong": [], "two, weak": []}
    for _ in range(repetitions):  # interleaved: what else runs on the machine disturbs them alike
        runs["one"].append(spawn(1, "timed", points=points, width=width, columns=columns))
        runs["two, strong"].append(spawn(2, "timed", points=points, width=width, columns=columns))
        runs["two, weak"].append(spawn(2, "timed", points=2 * points, width=width, columns=columns))
    found = {
        name: {key: statistics.median(max(rank[key] for rank in run) for run in each) for key in ("wall", "cpu", "sum")}
        for name, each in runs.items()
    }
    one, strong, weak = found["one"], found["two, strong"], found["two, weak"]
    record = {
        "points": points, "width": width, "columns": columns, "parameters": runs["one"][0][0]["parameters"], "seconds": found,
        "bytes_per_product": runs["one"][0][0]["bytes"],
        "strong": {"wall": one["wall"] / (2 * strong["wall"]), "cpu": one["cpu"] / (2 * strong["cpu"])},
        "weak": {"wall": one["wall"] / weak["wall"], "cpu": one["cpu"] / weak["cpu"]},
        # On paper: each rank's product takes its share of the time of one, and the sum what it takes by itself.
        "strong_predicted": one["wall"] / (2 * (one["wall"] / 2 + strong["sum"])),
        "weak_predicted": one["wall"] / (one["wall"] + weak["sum"]),
        "load_average": os.getloadavg()[0],
    }  # fmt: skip
    for kind in ("strong", "weak"):
        print(f"{kind} scaling, 1 → 2: {record[kind]['wall']:.0%} by the wall, {record[kind]['cpu']:.0%} by CPU time, "
              f"{record[f'{kind}_predicted']:.0%} on paper")  # fmt: skip
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--part", choices=["equality", "scaling"], help="one part anew, the other as it was saved")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker)
        return
    record = {} if arguments.part is None else load("distributed")
    record.pop("environment", None)
    if arguments.part != "scaling":
        record["equality"] = equality(arguments.small)
    if arguments.part != "equality":
        record["scaling"] = scaling(arguments.small, 1 if arguments.small else arguments.repetitions)
    if not arguments.small:
        print(save("distributed", record))


if __name__ == "__main__":
    main()
