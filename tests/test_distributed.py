"""One fit over several processes: the same posterior as one process that holds everything."""

import pytest
import ranks
import torch
from problems import by_name
from ranks import TIMEOUT, cut, results
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import ntkgp
from ntkgp.lowrank import LowRankPosterior

TIGHT = ntkgp.CGLS(tol=1e-11, max_iterations=5000)
METHODS = {
    "rank": ntkgp.LowRank(rank=4, tail=3, solver=TIGHT, side="weights"),
    "rtol": ntkgp.LowRank(rtol=0.05, solver=TIGHT, side="weights"),
    "exact": ntkgp.Exact(),
    "trained": ntkgp.TrainedNetworks(rank=3, tail=2),
    "chosen": None,
}
FIELDS = ("mean", "variance", "lower", "upper")


def seed(value: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(value)


def shard_of(name: str, rank: int, size: int, how: str, loader: bool = False):
    """A rank's part of a case: data, targets, and the noise that goes with it."""
    case = by_name(name)
    here = cut(len(case.x), size, rank, how)
    noise = case.noise_var
    if isinstance(noise, Tensor):
        noise = noise[here]
    if not loader:
        return case, case.x[here], case.y[here], noise
    part = TensorDataset(case.x[here], case.y[here])
    return case, DataLoader(part, batch_size=5) if len(part) else [], None, noise


def answer(rank: int, size: int, name: str, method: str, how: str, loader: bool = False, memory: int | None = None):
    case, x, y, noise = shard_of(name, rank, size, how, loader)
    group = ntkgp.Group(timeout=TIMEOUT, memory=memory)
    posterior = ntkgp.fit(
        case.module(), x, y, noise_var=noise, method=METHODS[method], prior_mean=case.prior_mean, prior_var=case.prior_var,
        generator=seed(rank), group=group,
    )  # fmt: skip
    return vars(posterior.predict(case.query, noise_var=0.1)), posterior.covariance(case.query)


def alone(name: str, method: str):
    posterior = by_name(name).fit(METHODS[method], generator=seed())
    return vars(posterior.predict(by_name(name).query, noise_var=0.1)), posterior.covariance(by_name(name).query)


def check(found, expected, tolerance: float = 1e-8):
    scale = expected[0]["upper"].abs().max()
    for field in FIELDS:
        assert float((found[0][field] - expected[0][field]).abs().max()) <= tolerance * max(1.0, float(scale)), field
    assert float((found[1] - expected[1]).abs().max()) <= tolerance * max(1.0, float(scale))


@pytest.mark.parametrize("how", ["even", "uneven", "empty first"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_posterior_is_that_of_one_process(size: int, how: str):
    if how == "empty first" and size == 1:
        pytest.skip("somebody must have points")
    expected = alone("noise per output", "rank")
    for found in results(size, answer, size, "noise per output", "rank", how):
        check(found, expected)


@pytest.mark.parametrize("memory", [None, 1], ids=["copies", "split"])
@pytest.mark.parametrize("method", ["rank", "rtol"])
def test_many_cases(method: str, memory: int | None):
    """Copies of the head on every rank, or split over them."""
    for name in ("more points than parameters", "cnn", "function as prior mean", "recurrent"):
        expected = alone(name, method)
        for found in results(3, answer, 3, name, method, "uneven", False, memory):
            check(found, expected)
