"""The BoTorch model at work: paths, acquisition functions, Thompson sampling."""

from collections.abc import Callable
from functools import cache

import pytest

pytest.importorskip("botorch")  # which needs Python 3.11


import torch
from botorch.acquisition import (
    AcquisitionFunction,
    LogExpectedImprovement,
    PosteriorMean,
    UpperConfidenceBound,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qUpperConfidenceBound,
)
from botorch.acquisition.multi_objective import qLogNoisyExpectedHypervolumeImprovement
from botorch.generation import MaxPosteriorSampling
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.sampling import optimize_posterior_samples
from torch import Tensor

from ntkgp.botorch import NTKGPModel
from tests.doors.botorch.models import built, covariance, hill, net, uniform, wrapped

BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
GRID = torch.cartesian_prod(*[torch.linspace(0, 1, 4, dtype=torch.float64)] * 2)
# GPyTorch's jitter when two of the points it draws at are nearly the same, as with its own models.
pytestmark = pytest.mark.filterwarnings("ignore:A not p.d.")


def hills(X: Tensor) -> Tensor:
    return torch.cat([hill(X), hill(1 - X)], dim=-1)


@cache
def ready(outputs: int = 1) -> NTKGPModel:
    """Well tuned, for acquisition functions to work with."""
    return built(GRID, hills(GRID)[:, :outputs], module=net(2, outputs), noise_var=1e-5, steps=60)


def test_paths_are_draws_of_the_posterior():
    model, X = wrapped(), uniform(3, 2, seed=1)
    g = torch.Generator().manual_seed(0)
    paths = model.sample_paths(4000, generator=g)
    values = paths(X)[..., 0]
    assert torch.equal(values, paths(X)[..., 0])
    torch.testing.assert_close(values.mean(0), model.posterior(X).mean[:, 0], rtol=0, atol=0.02)
    torch.testing.assert_close(values.T.cov(), covariance(model, X), rtol=0, atol=0.02)


@pytest.mark.parametrize("outputs", [1, 2])
def test_shapes_of_paths(outputs: int):
    model, X = wrapped(outputs=outputs), uniform(4, 2, seed=1)
    paths = model.sample_paths(3)
    same = paths(X)
    assert same.shape == (3, 4, outputs)
    assert paths(X.expand(5, 1, 4, 2)).shape == (5, 3, 4, outputs)
    torch.testing.assert_close(paths(X.expand(3, 4, 2)), same)
    torch.testing.assert_close(paths(X.expand(5, 3, 4, 2))[4], same)
    own = uniform(3, 4, 2, seed=2)
    torch.testing.assert_close(paths(own)[1], paths(own[1])[1])
    assert model.sample_paths(1)(X.expand(5, 4, 2)).shape == (5, 4, outputs)
    with pytest.raises(ValueError, match="for 3 paths"):
        paths(X.expand(5, 4, 2))


Maker = Callable[[NTKGPModel, Tensor, Tensor], AcquisitionFunction]
ACQUISITIONS: dict[str, Maker] = {
    "LogEI": lambda model, X, Y: LogExpectedImprovement(model, best_f=Y.max()),
    "qLogEI": lambda model, X, Y: qLogExpectedImprovement(model, best_f=Y.max()),
    "qLogNEI": lambda model, X, Y: qLogNoisyExpectedImprovement(model, X, cache_root=False),
    "UCB": lambda model, X, Y: UpperConfidenceBound(model, beta=0.1),
    "qUCB": lambda model, X, Y: qUpperConfidenceBound(model, beta=0.1),
    "path": lambda model, X, Y: PosteriorMean(model.sample_paths(1)),  # pyright: ignore[reportArgumentType]
}


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_acquisition_functions_find_something_better(name: str):
    q = 2 if name.startswith("q") else 1
    with torch.random.fork_rng():
        torch.manual_seed(0)
        acquisition = ACQUISITIONS[name](ready(), GRID, hill(GRID))
        found, _ = optimize_acqf(acquisition, BOUNDS, q=q, num_restarts=2, raw_samples=32, options={"maxiter": 30})
    assert found.shape == (q, 2)
    assert hill(found).max() > hill(GRID).max()


def test_knowledge_gradient():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        acquisition = qKnowledgeGradient(ready(), num_fantasies=4)
        found, value = optimize_acqf(acquisition, BOUNDS, q=1, num_restarts=2, raw_samples=16, options={"maxiter": 20})
    assert found.shape == (1, 2)
    assert bool(value > hill(GRID).max())  # pyright: ignore[reportOptionalOperand]


def test_two_objectives(monkeypatch: pytest.MonkeyPatch):
    # BoTorch would compile a faster version of its own code first, which takes longer than this test and needs a compiler.
    monkeypatch.setattr("botorch.acquisition.multi_objective.logei._load_attempted", True, raising=False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        acquisition = qLogNoisyExpectedHypervolumeImprovement(
            ready(2), ref_point=[-1.0, -1.0], X_baseline=GRID, prune_baseline=True, cache_root=False,
            sampler=SobolQMCNormalSampler(torch.Size([32])),
        )  # fmt: skip
        found, _ = optimize_acqf(acquisition, BOUNDS, q=1, num_restarts=2, raw_samples=32, options={"maxiter": 20})
    assert not bool((hills(found) <= hills(GRID)).all(dim=1).any())  # no point dominates it


def test_thompson_sampling():
    candidates = uniform(60, 2, seed=1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        chosen = MaxPosteriorSampling(ready(), replacement=False)(candidates, num_samples=3)
        best, values = optimize_posterior_samples(ready().sample_paths(3), BOUNDS, raw_samples=64, num_restarts=2)
    assert hill(chosen).min() >= hill(candidates).sort(dim=0, descending=True).values[4]
    assert best.shape == (3, 2)
    assert values.shape == (3, 1)
    assert hill(best).min() > hill(GRID).max()
