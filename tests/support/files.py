"""Posteriors that go to a file and come back."""

import torch
from torch import Tensor, nn

import ntkgp
from tests.support.cases import Case
from tests.support.helpers import METHODS, answers, seeded


def linear(features: int) -> nn.Module:
    """The smallest network."""
    module = nn.utils.skip_init(nn.Linear, features, features, dtype=torch.float64)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.linspace(-1, 1, p.numel()).view_as(p))
    return module


def fitted(case: Case, method: str = "exact") -> ntkgp.posterior.Posterior:
    return case.fit(METHODS[method], generator=seeded())


def assert_same_bits(one: ntkgp.posterior.Posterior, other: ntkgp.posterior.Posterior, x: Tensor, draws: int = 3) -> None:
    assert type(one) is type(other)
    for a, b in zip(answers(one, x, draws), answers(other, x, draws), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
