"""Bayesian optimisation: ``NTKGPModel`` and BoTorch's ``SingleTaskGP`` with the same acquisition function and budget.

``SingleTaskGP`` runs twice: as it comes, and told that there is no noise (else it infers it, with a prior that expects some).

Each run starts from the same 2(d + 1) Sobol points and evaluates one point at a time, where logarithmic expected improvement is
highest; inputs in the unit cube, targets standardised, no noise. Ackley's function is taken on [-5, 10]⁵, so that its optimum
is not the centre of the cube.

python -m benchmarks.studies.bayesopt                        hours
python -m benchmarks.studies.bayesopt --functions branin     some minutes a seed
python -m benchmarks.studies.bayesopt --report               the table, the summary and docs/bayesopt.png
"""

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.optim import optimize_acqf
from botorch.test_functions import Ackley, Branin, Hartmann
from botorch.test_functions.base import BaseTestProblem
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.store import Record
from benchmarks.studies.bayesopt.report import FUNCTIONS, MODELS, report
from benchmarks.studies.runner import Given, Job, Study
from ntkgp.botorch import NTKGPModel

SETTINGS: dict[str, Any] = {"num_restarts": 4, "raw_samples": 256, "options": {"maxiter": 100}}


class Task(NamedTuple):
    """A function to be maximised, and how many points may be evaluated after the first ones."""

    problem: BaseTestProblem
    steps: int


TASKS = {
    "branin": Task(Branin(negate=True).double(), 30),
    "hartmann6": Task(Hartmann(dim=6, negate=True).double(), 50),
    "ackley5": Task(Ackley(dim=5, negate=True, bounds=[(-5.0, 10.0)] * 5).double(), 50),
}


def ntkgp_model(X: Tensor, Y: Tensor, seed: int) -> Model:
    """Ours as it comes; other weights for every number of points."""
    return NTKGPModel(X, Y, generator=torch.Generator().manual_seed(1000 * seed + len(X)))


def single_task_gp(X: Tensor, Y: Tensor, seed: int) -> Model:
    """BoTorch's as it comes: it infers the noise, with a prior that expects some."""
    return fitted(SingleTaskGP(X, Y))


def single_task_gp_told(X: Tensor, Y: Tensor, seed: int) -> Model:
    """BoTorch's, told that there is no noise (as much of the targets' variance as ours may go down to)."""
    return fitted(SingleTaskGP(X, Y, train_Yvar=(1e-6 * Y.var()).expand_as(Y)))


def fitted(model: SingleTaskGP) -> SingleTaskGP:
    """With hyper-parameters by BoTorch's own routine."""
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


SURROGATES: dict[str, Callable[[Tensor, Tensor, int], Model]] = {
    "ntkgp": ntkgp_model,
    "single_task_gp": single_task_gp,
    "single_task_gp_told": single_task_gp_told,
}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--functions", nargs="+", choices=FUNCTIONS, default=list(FUNCTIONS))
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--seeds", type=int, default=10)


def jobs(given: Given) -> Iterator[Job]:
    """Function by function, seed by seed, so that models are compared early."""
    for function in given.functions:
        for seed in range(given.seeds):
            yield from ({"function": function, "seed": seed, "model": model} for model in given.models)


def run(job: Job, given: Given) -> Record:
    """One optimisation from start to end."""
    seed = job["seed"]
    torch.manual_seed(seed)
    problem, steps = TASKS[job["function"]]
    dim = problem.dim
    cube = torch.tensor([[0.0] * dim, [1.0] * dim], dtype=torch.float64)
    low, high = torch.as_tensor(problem.bounds)
    X = draw_sobol_samples(cube, 1, 2 * (dim + 1), seed=seed)[0]
    Y = problem(low + (high - low) * X).unsqueeze(1)
    fitting, searching = 0.0, 0.0
    for _ in range(steps):
        start = time.process_time()
        surrogate = SURROGATES[job["model"]](X, Y, seed)
        fitted = time.process_time()
        new, _ = optimize_acqf(LogExpectedImprovement(surrogate, best_f=Y.max()), cube, q=1, **SETTINGS)
        fitting, searching = fitting + fitted - start, searching + time.process_time() - fitted
        X, Y = torch.cat([X, new]), torch.cat([Y, problem(low + (high - low) * new).unsqueeze(1)])
    regret = torch.as_tensor(problem.optimal_value) - Y[:, 0].cummax(dim=0).values
    return {
        "first": 2 * (dim + 1), "acquisition": "LogEI",
        "settings": SETTINGS, "values": Y[:, 0].tolist(), "regret": regret.tolist(),
        "seconds": {"fit": fitting, "acquisition": searching},
    }  # fmt: skip


def line(record: Record) -> str:
    return f"regret {record['regret'][-1]:.4g}"


STUDY = Study(
    "bayesopt", __doc__ or "", ("function", "seed", "model"), options, jobs, run, line, report, file_by="function",
)  # fmt: skip
