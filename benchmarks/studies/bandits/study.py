"""Contextual bandits: the wheel and one generated problem, our UCB and Thompson sampling beside four baselines.

python -m benchmarks.studies.bandits --jobs 2                 all runs
python -m benchmarks.studies.bandits --methods ucb linear     some methods; --problems wheel-0.95, --seeds 0 1
python -m benchmarks.studies.bandits --report                 the summary, the table and docs/bandits.png
"""

import argparse
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.store import Record
from benchmarks.studies.bandits.baselines import EpsilonGreedy, LinearThompson, NeuralLinear
from benchmarks.studies.bandits.ours import BETA, generated_bandit, wheel_bandit
from benchmarks.studies.bandits.problems import Problem, generated, wheel
from benchmarks.studies.bandits.report import METHODS, PROBLEMS, report
from benchmarks.studies.runner import Given, Job, Study
from ntkgp.bandits import UCB, Thompson

WHEEL_ROUNDS, GENERATED_ROUNDS = 20_000, 4_000


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))


def jobs(given: Given) -> Iterator[Job]:
    """Method by method, problem by problem."""
    for method in given.methods:
        for problem in given.problems:
            yield from ({"problem": problem, "method": method, "seed": seed} for seed in given.seeds)


def posed(name: str, seed: int) -> Problem:
    """A problem by its name: generated, or the wheel with its δ."""
    kind, _, delta = name.partition("-")
    return generated(GENERATED_ROUNDS, seed) if kind == "generated" else wheel(float(delta), WHEEL_ROUNDS, seed)


def player(method: str, problem: str, generator: torch.Generator) -> Any:
    """An object that chooses arms and observes rewards."""
    if method in ("ucb", "thompson"):
        explore = UCB(BETA[problem.partition("-")[0]]) if method == "ucb" else Thompson()
        return (generated_bandit if problem == "generated" else wheel_bandit)(explore, generator)
    features, arms = (3, 6) if problem == "generated" else (2, 5)
    if method.startswith("epsilon"):
        decay, least = (0.999, 0.0) if method == "epsilon" else (0.995, 0.003)
        return EpsilonGreedy(features, arms, generator, decay, least)
    return (LinearThompson if method == "linear" else NeuralLinear)(features, arms, generator)


def batch(t: int) -> int:
    """Contexts between two updates, the same for all methods."""
    return 1 if t < 50 else 5 if t < 300 else 10 if t < 1000 else 25 if t < 4000 else 50 if t < 10_000 else 100


def run(job: Job, given: Given) -> Record:
    """One method on one problem from start to end."""
    problem, start = posed(job["problem"], job["seed"]), time.process_time()
    one = player(job["method"], job["problem"], torch.Generator().manual_seed(100 + job["seed"]))
    played, t = [], 0
    while t < len(problem.contexts):
        rows = slice(t, t + batch(t))
        x = problem.contexts[rows]
        arms: Tensor = one.choose(x)
        one.observe(x, arms, problem.rewards[rows].gather(1, arms.unsqueeze(1)).squeeze(1))
        played.append(arms)
        t += len(arms)
    regret = problem.regret(torch.cat(played)).cumsum(dim=0)
    return {
        "rounds": len(regret), "percent": percent(problem, regret, len(regret)), "at_10000": percent(problem, regret, 10_000),
        "regret_every_100": [round(v, 3) for v in regret[99::100].tolist()], "cpu_seconds": time.process_time() - start,
    }  # fmt: skip


def percent(problem: Problem, regret: Tensor, rounds: int) -> float | None:
    """Cumulative regret after so many rounds, in percent of that of uniform play; None if there are fewer rounds."""
    return None if rounds > len(regret) else 100 * float(regret[rounds - 1]) / problem.uniform(rounds)


def line(record: Record) -> str:
    return f"{record['percent']:.2f} %, {record['cpu_seconds']:.0f} s"


STUDY = Study(
    "bandits", __doc__ or "", ("problem", "method", "seed"), options, jobs, run, line, report, file_by="problem",
)  # fmt: skip
