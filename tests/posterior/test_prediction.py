"""Densities and intervals of a prediction against torch.distributions."""

import pytest
import torch

import ntkgp
from tests.support.evaluations import SHAPES, drawn, normal
from tests.support.helpers import seeded


@pytest.mark.parametrize("shape", SHAPES)
def test_log_density_and_interval(shape: tuple[int, ...]):
    p, y = drawn(shape)
    law = normal(p)
    torch.testing.assert_close(p.log_density(y), law.log_prob(y), rtol=1e-12, atol=1e-12)
    for level in (0.05, 0.5, 0.95, 0.999):
        low, high = p.interval(level)
        torch.testing.assert_close(law.cdf(high) - law.cdf(low), torch.full(shape, level).double(), rtol=1e-6, atol=0)
        torch.testing.assert_close(low + high, 2 * p.mean)
    assert [torch.equal(a, b) for a, b in zip(p.interval(), p.interval(0.95), strict=True)] == [True, True]


def test_log_density_is_differentiable_in_the_query():
    net = ntkgp.mlp(1, width=16, generator=seeded()).double()
    x = torch.linspace(-1, 1, 6, dtype=torch.float64).unsqueeze(1)
    posterior = ntkgp.fit(net, x, x[:, 0].sin(), noise_var=0.1)
    query, y = torch.tensor([[0.3]], dtype=torch.float64, requires_grad=True), torch.tensor([0.7], dtype=torch.float64)
    (slope,) = torch.autograd.grad(posterior.predict(query).log_density(y).sum(), query)
    up, down = (posterior.predict(query.detach() + h).log_density(y) for h in (1e-6, -1e-6))
    assert float(slope) == pytest.approx(float(up - down) / 2e-6, rel=1e-5)
