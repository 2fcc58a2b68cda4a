"""What many tests need: seeded generators, one method of each kind, everything a posterior answers."""

from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import Tensor

import ntkgp

ROOT = Path(__file__).parents[2]  # of the repository
Method = ntkgp.Exact | ntkgp.LowRank | ntkgp.TrainedNetworks
SURE = 1 - 1e-12  # confidence of brackets that never fail: for tests that ask for every single one
# One of each kind, small and quick: for what does not depend on how accurate it is.
METHODS: dict[str, Method] = {
    "exact": ntkgp.Exact(),
    "low rank": ntkgp.LowRank(rank=3, draws=2, confidence=SURE),
    "trained": ntkgp.TrainedNetworks(rank=2, tail=1, trainer=ntkgp.AcceleratedGD(tol=0.5)),
}
each_method = pytest.mark.parametrize("method", METHODS)
TIGHT = ntkgp.CGLS(tol=1e-10, max_iterations=5000)  # for comparisons with the oracle


def seeded(seed: int = 0) -> torch.Generator:
    """A generator of its own, so that no test depends on what ran before it."""
    return torch.Generator().manual_seed(seed)


def answers(posterior: ntkgp.posterior.Posterior, x: Tensor, draws: int = 2) -> list[Tensor]:
    """The prediction field by field, the covariance, and functions drawn from the posterior (none if `draws` is 0)."""
    p = posterior.predict(x)
    predicted = [value for f in fields(p) if isinstance(value := getattr(p, f.name), Tensor)]
    samples = [posterior.sample(draws, generator=seeded(1))(x)] if draws else []
    return [*predicted, posterior.covariance(x), *samples]


def flat_answers(posterior: ntkgp.posterior.Posterior, x: Tensor, draws: int = 2) -> Tensor:
    """The same numbers in one vector, for comparisons bit by bit."""
    return torch.cat([part.flatten().double() for part in answers(posterior, x, draws)])
