"""Which network for Bayesian optimisation: candidates compared on functions that the study does not have.

Each candidate is tuned on a few Sobol points of random functions, and of test functions other than those of
``benchmarks/studies/bayesopt``; on 500 other points its error and the negative log density of the function are measured, in
standard deviations of the data. The default of :class:`ntkgp.botorch.NTKGPModel` is the network that won.

python -m benchmarks.studies.bayesopt.network                an hour
python -m benchmarks.studies.bayesopt.network --report       the table
"""

import argparse
import statistics
import time
from collections.abc import Iterator

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

import ntkgp
from benchmarks.page import table
from benchmarks.scores import gaussian_log_density
from benchmarks.store import Record
from benchmarks.studies.bayesopt.candidates import CANDIDATES
from benchmarks.studies.bayesopt.functions import tasks
from benchmarks.studies.runner import Given, Job, Study, main

NAMES = ("gp", *CANDIDATES)  # "gp" is BoTorch's own model
HEAD = ("network", "negative log density", "widened", "error / that of SingleTaskGP", "s to tune")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=NAMES, default=list(NAMES), metavar="NAME", help="some candidates")


def jobs(given: Given) -> Iterator[Job]:
    """Function by function, every candidate."""
    for task in tasks(given.seeds):
        yield from ({"task": task, "candidate": name} for name in given.only)


def score(mean: Tensor, variance: Tensor, truth: Tensor) -> Record:
    """Error and negative log density, in the units of the standardised data."""
    density = gaussian_log_density(truth, mean, variance.clamp_min(1e-8).sqrt())
    return {"rmse": float((truth - mean).square().mean().sqrt()), "nlpd": -float(density.mean())}


def run(job: Job, given: Given) -> Record:
    """One candidate on one function."""
    dim, points, function = tasks(given.seeds)[job["task"]]
    seed = int(job["task"].rsplit(" ", 1)[1])
    bounds = torch.tensor([[0.0] * dim, [1.0] * dim], dtype=torch.float64)
    x = draw_sobol_samples(bounds, 1, points, seed=seed)[0]
    test = torch.rand(500, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    y, truth = function(x), function(test)
    shift, unit = y.mean(), y.std()
    y, truth = (y - shift) / unit, (truth - shift) / unit
    start = time.perf_counter()
    if job["candidate"] == "gp":
        model = SingleTaskGP(x, y.unsqueeze(1), outcome_transform=None)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        seconds = time.perf_counter() - start
        with torch.no_grad():
            p = model.posterior(test)
        return {**score(p.mean[:, 0], p.variance[:, 0], truth), "seconds": seconds}
    build, special = CANDIDATES[job["candidate"]]
    tuned = ntkgp.tune(build(dim, torch.Generator().manual_seed(seed)), x, y,
                       **{"starts": 2, "steps": 60, "hyper_prior": 1.0, **special})  # fmt: skip
    seconds = time.perf_counter() - start
    p, wide = tuned.fit(x, y).predict(test), tuned.widened().fit(x, y).predict(test)
    widened = score(wide.mean, wide.variance, truth)["nlpd"]
    return {**score(p.mean, p.variance, truth), "nlpd_widened": widened, "seconds": seconds}


def line(record: Record) -> str:
    return f"nlpd {record['nlpd']:.2f} {record['seconds']:.1f} s"


def report(records: list[Record], given: Given) -> None:
    """Print means over the functions that every candidate has seen; errors as a ratio to BoTorch's model."""
    found = {(row["task"], row["candidate"]): row for row in records}
    names = [name for name in NAMES if any(row["candidate"] == name for row in records)]
    common = [task for task in dict.fromkeys(row["task"] for row in records) if all((task, name) in found for name in names)]
    lines = []
    for name in names:
        mine, reference = ([found[task, one] for task in common] for one in (name, "gp"))
        ratio = statistics.geometric_mean(a["rmse"] / b["rmse"] for a, b in zip(mine, reference, strict=True))
        nlpd, wide = (statistics.mean(row.get(key, row["nlpd"]) for row in mine) for key in ("nlpd", "nlpd_widened"))
        seconds = statistics.mean(row["seconds"] for row in mine)
        lines.append([name, f"{nlpd:.2f}", f"{wide:.2f}", f"{ratio:.2f}", f"{seconds:.1f}"])
    print(f"{len(common)} functions\n\n{table(HEAD, lines, compact=True)}")


STUDY = Study("bayesopt_network", __doc__ or "", ("task", "candidate"), options, jobs, run, line, report)

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
