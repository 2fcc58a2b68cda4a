"""Noise of groups of observations."""

import torch

from ntkgp.tuning.group_noise import PSEUDO_COUNT, group_noise


def test_noise_of_groups_is_where_the_likelihood_is_flat():
    g = torch.Generator().manual_seed(0)
    x = torch.rand(150, generator=g, dtype=torch.float64) * 6
    kernel = torch.exp(-0.5 * (x[:, None] - x).square())
    groups, truth = torch.arange(150) % 3, torch.tensor([0.01, 0.1, 1.0], dtype=torch.float64)
    draw = torch.randn(2, 150, generator=g, dtype=torch.float64)
    r = torch.linalg.cholesky(kernel + 1e-9 * torch.eye(150)) @ draw[0] + truth[groups].sqrt() * draw[1]
    start = torch.full((3,), 0.4, dtype=torch.float64)
    noise = group_noise(kernel, r, groups, start).requires_grad_()
    law = torch.distributions.MultivariateNormal(torch.zeros_like(r), kernel + noise[groups].diag())
    objective = law.log_prob(r) - PSEUDO_COUNT / 2 * (noise.log() + start / noise).sum()
    (slope,) = torch.autograd.grad(objective, noise)
    assert float((slope * noise.detach()).abs().max()) < 0.05  # nats a doubling, beside the 25 of half a group
