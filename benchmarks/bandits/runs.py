"""One run: a method on a problem from start to end, and the JSON it is kept in."""

import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.bandits.baselines import EpsilonGreedy, LinearThompson, NeuralLinear
from benchmarks.bandits.ours import BETA, generated_bandit, wheel_bandit
from benchmarks.bandits.problems import Problem, generated, wheel
from benchmarks.common import RESULTS, save
from ntkgp.bandits import UCB, Thompson

FOLDER = RESULTS / "bandits"
ROUNDS = {"wheel": 20_000, "generated": 4_000}
DELTAS = (0.5, 0.7, 0.9, 0.95, 0.99)
PROBLEMS: dict[str, Callable[[int], Problem]] = {
    **{f"wheel-{delta}": lambda seed, delta=delta: wheel(delta, ROUNDS["wheel"], seed) for delta in DELTAS},
    "generated": lambda seed: generated(ROUNDS["generated"], seed),
}
METHODS = ("ucb", "thompson", "linear", "neural_linear", "epsilon", "epsilon_floor")


def player(method: str, problem: str, generator: torch.Generator) -> Any:
    """Something that chooses and observes."""
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


def run(method: str, name: str, seed: int) -> dict[str, Any]:
    """One method on one problem from start to end."""
    problem, start = PROBLEMS[name](seed), time.process_time()
    one, played, t = player(method, name, torch.Generator().manual_seed(100 + seed)), [], 0
    while t < len(problem.contexts):
        rows = slice(t, t + batch(t))
        x = problem.contexts[rows]
        arms: Tensor = one.choose(x)
        one.observe(x, arms, problem.rewards[rows].gather(1, arms.unsqueeze(1)).squeeze(1))
        played.append(arms)
        t += len(arms)
    regret = problem.regret(torch.cat(played)).cumsum(dim=0)
    return {
        "method": method, "problem": name, "seed": seed, "rounds": len(regret),
        "percent": percent(problem, regret, len(regret)), "at_10000": percent(problem, regret, 10_000),
        "regret_every_100": [round(v, 3) for v in regret[99::100].tolist()], "cpu_seconds": time.process_time() - start,
    }  # fmt: skip


def percent(problem: Problem, regret: Tensor, rounds: int) -> float | None:
    """Cumulative regret after so many rounds, of that of uniform play; None if there are fewer."""
    return None if rounds > len(regret) else 100 * float(regret[rounds - 1]) / problem.uniform(rounds)


def file_of(method: str, name: str, seed: int) -> str:
    """Where a run is kept."""
    return f"{name}_{method}_{seed}"


def complete(method: str, name: str, seed: int) -> str:
    """Run it and keep its JSON; one line to print."""
    record = run(method, name, seed)
    save(file_of(method, name, seed), record, FOLDER)
    return f"{name} {method} {seed}: {record['percent']:.2f} %, {record['cpu_seconds']:.0f} s"


def finished() -> list[dict[str, Any]]:
    """Every run that has its JSON."""
    names = [file_of(method, name, seed) for name in PROBLEMS for method in METHODS for seed in range(20)]
    return [json.loads((FOLDER / f"{n}.json").read_text()) for n in names if (FOLDER / f"{n}.json").exists()]
