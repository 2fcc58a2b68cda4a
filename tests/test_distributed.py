"""One fit over several processes: the same posterior as one process that holds everything."""

import pytest
import torch
from problems import by_name
from ranks import TIMEOUT, cut, results
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import ntkgp
from ntkgp.lowrank import LowRankPosterior

TIGHT = ntkgp.CGLS(tol=1e-11, max_iterations=5000)
METHODS = {
    "rank": ntkgp.LowRank(rank=6, tail=3, solver=TIGHT, side="weights"),
    "rtol": ntkgp.LowRank(rtol=0.05, solver=TIGHT, side="weights"),
    "exact": ntkgp.Exact(),
    "trained": ntkgp.TrainedNetworks(rank=3, tail=2),
    "chosen": None,
}
FIELDS = ("mean", "variance", "lower", "upper")


def seed(value: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(value)


def shard_of(name: str, size: int, rank: int, how: str, loader: bool = False):
    """A rank's part of a case: data, targets, and the noise that goes with it."""
    case = by_name(name)
    here = cut(len(case.x), size, rank, how)
    noise = case.noise_var[here] if isinstance(case.noise_var, Tensor) else case.noise_var
    if not loader:
        return case, case.x[here], case.y[here], noise
    part = TensorDataset(case.x[here], case.y[here])
    return case, DataLoader(part, batch_size=5) if len(part) else [], None, noise


def answers(rank: int, size: int, asked: list[tuple], memory: int | None = None):
    """Fit, and predict: for each (case, method, how the data is cut, whether by a loader)."""
    group, found = ntkgp.Group(timeout=TIMEOUT, memory=memory), []
    for name, method, how, loader in asked:
        case, x, y, noise = shard_of(name, size, rank, how, loader)
        posterior = ntkgp.fit(
            case.module(), x, y, noise_var=noise, method=METHODS[method], prior_mean=case.prior_mean,
            prior_var=case.prior_var, generator=seed(rank), group=group,
        )  # fmt: skip
        assert (memory is None) == (not isinstance(posterior, LowRankPosterior) or not posterior.problem.space.spread)
        found.append((vars(posterior.predict(case.query, noise_var=0.1)), posterior.covariance(case.query)))
    return found


def alone(name: str, method: str):
    case = by_name(name)
    posterior = case.fit(METHODS[method], generator=seed())
    return vars(posterior.predict(case.query, noise_var=0.1)), posterior.covariance(case.query)


def check(found, expected, tolerance: float = 1e-8):
    scale = max(1.0, float(expected[0]["upper"].abs().max()))
    for field in FIELDS:
        assert float((found[0][field] - expected[0][field]).abs().max()) <= tolerance * scale, field
    assert float((found[1] - expected[1]).abs().max()) <= tolerance * scale


def compare(size: int, asked: list[tuple], memory: int | None = None):
    expected = [alone(name, method) for name, method, *_ in asked]
    for found in results(size, answers, size, asked, memory):
        for one, other in zip(found, expected, strict=True):
            check(one, other)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_posterior_is_that_of_one_process(size: int):
    """Shards of the same size, of very different ones, and an empty one; tensors and loaders; noise per point."""
    cuts = ["even", "uneven"] + (["empty first"] if size > 1 else [])
    compare(size, [("noise per output", "rank", how, how == "uneven") for how in cuts])


@pytest.mark.parametrize("memory", [None, 1], ids=["copies", "split"])
def test_many_kinds_of_problems(memory: int | None):
    """Copies of the head on every rank, or split over them."""
    names = ("more points than parameters", "cnn", "function as prior mean", "weight used directly")
    compare(3, [(name, "rank", "uneven", False) for name in names] + [("paper mlp", "rtol", "empty first", False)], memory)


def test_the_other_methods_and_the_choice_among_them():
    compare(2, [("two outputs", method, "uneven", method == "exact") for method in ("exact", "trained", "chosen")])


def copies_by_rank(rank: int, size: int, folder: str | None, steps: int | None):
    case, x, y, noise = shard_of("paper mlp", size, rank, "uneven")
    trainer = ntkgp.AcceleratedGD() if steps is None else ntkgp.AcceleratedGD(max_steps=steps)
    method = ntkgp.TrainedNetworks(rank=3, tail=2, trainer=trainer)
    posterior = ntkgp.fit(case.module(), x, y, noise_var=noise, method=method, generator=seed(), group=ntkgp.Group())
    return posterior.predictors.trained.steps  # pyright: ignore[reportAttributeAccessIssue]
