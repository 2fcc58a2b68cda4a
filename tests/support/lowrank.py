"""Low-rank posteriors of the shared cases."""

import torch

import ntkgp
from ntkgp.posterior.lowrank.posterior import LowRankPosterior
from tests.support.cases import Case


def fitted(case: Case, method: ntkgp.LowRank, seed: int = 0) -> LowRankPosterior:
    posterior = case.fit(method, generator=torch.Generator().manual_seed(seed))
    assert isinstance(posterior, LowRankPosterior)
    return posterior
