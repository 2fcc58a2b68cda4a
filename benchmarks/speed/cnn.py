"""A convolutional network with ten outputs on 28×28 inputs, two thousand of them: a posterior without an N·C × P array.

python -m benchmarks.speed.cnn
"""

import argparse
import resource
import time
import warnings
from typing import Any

import torch
from torch import nn

import ntkgp
from benchmarks.store import save
from ntkgp.posterior.lowrank.posterior import LowRankPosterior


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 49, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def run(points: int, rank: int) -> dict[str, Any]:
    torch.manual_seed(0)
    net, labels = network(), torch.randint(0, 10, (points,))
    # Ten noisy stripes patterns: enough structure for a kernel, made on the spot.
    grid = torch.linspace(0, 3.14, 28)
    patterns = torch.stack([torch.sin((k + 1) * grid).outer(torch.cos(k * grid)) for k in range(10)])
    x = (patterns[labels] + 0.3 * torch.randn(points, 28, 28)).unsqueeze(1)
    y = nn.functional.one_hot(labels, 10).float()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    start = time.perf_counter()
    method = ntkgp.LowRank(rank=rank, solver=ntkgp.CGLS(tol=1e-2))
    posterior = ntkgp.fit(net, x, y, noise_var=0.1, method=method, generator=torch.Generator().manual_seed(1))
    assert isinstance(posterior, LowRankPosterior)
    p = posterior.predict(x[:100])
    seconds = time.perf_counter() - start
    rows, parameters = posterior.problem.operators.jacobian.shape
    return {
        "points": points, "outputs": 10, "parameters": parameters, "rank": rank, "seconds": seconds,
        "training_accuracy": float((p.mean.argmax(dim=1) == labels[:100]).float().mean()),
        "peak_gib_beyond_start": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20 - before,
        "jacobian_gib": rows * parameters * 4 / 2**30, "iterations": posterior.solution.iterations,
        "ordered": bool(((p.lower <= p.variance) & (p.variance <= p.upper)).all()), "stages": posterior.seconds,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=2000)
    parser.add_argument("--rank", type=int, default=64)
    arguments = parser.parse_args()
    warnings.simplefilter("default")
    record = run(arguments.points, arguments.rank)
    for key, value in record.items():
        print(f"{key:>22}: {value}")
    print(save("cnn", record))


if __name__ == "__main__":
    main()
