"""Tuning: is what the data were drawn with found, does the posterior match the analytic one, does a subset do.

python -m benchmarks.speed.tuning                                  recovery of known hyper-parameters, synthetic
python -m benchmarks.speed.tuning --data-dir DIR                   and the variance of tuned posteriors on three real sets
python -m benchmarks.speed.tuning --data-dir DIR --subset          and tuning on a subset against all points

The reference variance is a dense computation in float64 from a Jacobian by plain autograd, which shares no code with the
library.
"""

import argparse
import copy
import math
import time
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

import ntkgp
from benchmarks.scores import score
from benchmarks.store import save
from benchmarks.uci import load

SCALES = (6.0, 3.0)  # of inputs in [-2, 2]: several length scales fit in, or the amplitude could not be told from one draw
PRIOR, NOISE = 2.0, 0.002


def drawn(seed: int, points: int = 500, width: int = 256) -> tuple[nn.Module, Tensor, Tensor]:
    """A network and data drawn from its Gaussian process with known noise, input scales and prior variance."""
    g = torch.Generator().manual_seed(seed)
    # Bounded, because a rectifier's scale is (almost) an amplitude and could not be told from the prior variance.
    module = ntkgp.mlp(len(SCALES), width=width, activation=nn.Tanh(), output_scale=1.0, generator=g).double()
    x = torch.rand(points, len(SCALES), generator=g, dtype=torch.float64) * 4 - 2
    scaled = nn.Sequential(ntkgp.networks.InputScales(torch.tensor(SCALES, dtype=torch.float64)), module)
    matrix = PRIOR * ntkgp.kernel(scaled, x) + NOISE * torch.eye(points, dtype=torch.float64)
    return module, x, torch.linalg.cholesky(matrix) @ torch.randn(points, generator=g, dtype=torch.float64)


def recovery(seeds: int) -> dict[str, object]:
    """Relative errors of noise, scales and prior variance, and whether the likelihood ever fell below its start."""
    rows = []
    for seed in range(seeds):
        module, x, y = drawn(seed)
        tuned = ntkgp.tune(module, x, y, prior_var="shared", generator=torch.Generator().manual_seed(seed))
        assert isinstance(tuned.prior_var, float)
        scales = tuned.input_scales["scales"] / torch.tensor(SCALES, dtype=torch.float64) - 1
        rows.append({
            "noise": float(tuned.noise_var) / NOISE - 1, "prior": tuned.prior_var / PRIOR - 1, "scales": scales.tolist(),
            "start": tuned.start, "found": tuned.log_marginal_likelihood,
        })  # fmt: skip
        print(seed, rows[-1], flush=True)

    def median(values: list[float]) -> float:
        return float(torch.tensor(values).abs().median())

    return {
        "points": 500, "seeds": seeds, "rows": rows,
        "median_error": {
            "noise": median([row["noise"] for row in rows]),
            "prior": median([row["prior"] for row in rows]),
            "scales": [median([row["scales"][k] for row in rows]) for k in range(len(SCALES))],
        },
        "never_below_start": all(row["found"] >= row["start"] for row in rows),
    }  # fmt: skip


def analytic(module: nn.Module, x: Tensor, query: Tensor, noise: float, prior: dict[str, float]) -> Tensor:
    """The posterior variance, from Jacobians by plain autograd."""
    module = copy.deepcopy(module).double()
    roots = {name: math.sqrt(prior[name.rpartition(".")[0]]) for name, _ in module.named_parameters()}

    def rows(points: Tensor) -> Tensor:
        outputs = module(points.double()).flatten()
        found = [torch.autograd.grad(value, list(module.parameters()), retain_graph=True) for value in outputs]
        return torch.stack(
            [torch.cat([g.flatten() * r for g, r in zip(grads, roots.values(), strict=True)]) for grads in found]
        )

    train, new = rows(x), rows(query)
    matrix = train @ train.T + noise * torch.eye(len(x), dtype=torch.float64)
    cross = train @ new.T
    return new.square().sum(dim=1) - (cross * torch.linalg.solve(matrix, cross)).sum(dim=0)


def variance(folder: Path, name: str) -> dict[str, object]:
    """Tuned posteriors on standard split 0 against the analytic variance: relative error over the test points."""
    split = load(folder, name, "standard", 0)
    g = torch.Generator().manual_seed(0)
    net = ntkgp.mlp(split.x.shape[1], width=64, activation=nn.SiLU(), generator=g).double()
    tuned = ntkgp.tune(net, split.x, split.y, generator=g)
    assert isinstance(tuned.prior_var, dict)
    truth = analytic(tuned.module, split.x, split.x_test, float(tuned.noise_var), tuned.prior_var)
    methods = {
        "exact": ntkgp.Exact(),
        "low rank, full": ntkgp.LowRank(
            rank=min(len(split.x), sum(p.numel() for p in net.parameters())), svd=ntkgp.linalg.DenseSVD()
        ),
        "low rank, rtol=0.01": ntkgp.LowRank(rtol=0.01),
    }
    errors = {}
    for label, method in methods.items():
        p = tuned.fit(split.x, split.y, method=method, generator=torch.Generator().manual_seed(1)).predict(split.x_test)
        errors[label] = {
            "norm": float((p.variance - truth).norm() / truth.norm()),
            "worst": float(((p.variance - truth).abs() / truth).max()),
            "inside": float(((p.lower <= truth * (1 + 1e-6)) & (truth <= p.upper * (1 + 1e-6))).double().mean()),
        }
        print(name, label, errors[label], flush=True)
    return {"set": name, "points": len(split.x), "noise_var": float(tuned.noise_var), "errors": errors}


def subset(folder: Path, name: str, device: str) -> list[dict[str, object]]:
    """Validation NLL (a fifth of the training points of split 0) by the number of points the hyper-parameters are tuned on.

    All points is what any estimator of the likelihood, however good, could reach.
    """
    split = load(folder, name, "standard", 0).validation(0)
    x, y, query = split.x.to(device), split.y.to(device), split.x_test.to(device)
    rows = []
    for points in (250, 500, 1000, 2000, 4000, len(x)):
        g = torch.Generator().manual_seed(0)
        net = ntkgp.mlp(x.shape[1], width=512, activation=nn.SiLU(), generator=g).to(x)
        start = time.perf_counter()
        tuned = ntkgp.tune(net, x, y, points=points, starts=1, generator=g)
        seconds = time.perf_counter() - start
        p = tuned.fit(x, y).predict(query)
        rows.append(
            {"set": name, "points": points, "seconds": seconds, **score(split.forecast(p.mean, p.total_std), split.y_test)}
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--subset", action="store_true")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    save("tuning-recovery", recovery(given.seeds))
    if given.data_dir:
        save("tuning-variance", {"rows": [variance(given.data_dir, name) for name in ("yacht", "energy", "concrete")]})
        if given.subset:
            save(f"tuning-subset-{given.device}", {"rows": subset(given.data_dir, "kin8nm", given.device)})


if __name__ == "__main__":
    main()
