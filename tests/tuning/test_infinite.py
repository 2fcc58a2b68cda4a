"""Tuning infinite networks: the gradient against differences, and known hyper-parameters found."""

import math

import pytest
import torch
from torch import Tensor, nn

import ntkgp
from ntkgp.networks import Erf, InputScales
from ntkgp.problem.build import build_problem
from ntkgp.problem.source import Source
from ntkgp.tuning.likelihood import NOISE, PRIOR, Likelihood
from tests.support.helpers import seeded

STEP = 1e-5


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("activation", [nn.ReLU(), Erf(), nn.SiLU()], ids=["relu", "erf", "silu"])
def test_the_gradient_is_that_of_the_likelihood(activation: nn.Module, outputs: int):
    """300 points take more than one tile, so that a tile that is missing or counted twice shows."""
    g = seeded()
    x, y = torch.randn(300, 3, generator=g).double(), torch.randn(300, outputs, generator=g).double()
    net = nn.Sequential(InputScales(torch.ones(3)), ntkgp.mlp(3, outputs, width=math.inf, activation=activation, depth=1))
    problem = build_problem(net, Source(x, y, 1.0), dtype=torch.float64)
    names = list(problem.network.anchor)
    likelihood = Likelihood(problem, [names[:2], names[2:]], base={names[0]: problem.network.anchor[names[0]]})
    logs = {
        PRIOR: torch.tensor([0.3, -0.5]), NOISE: torch.tensor([-1.0]), "0.scale": torch.tensor([0.1, -0.2, 0.4]),
        names[0]: torch.tensor(0.2),
    }  # fmt: skip
    leaves = {name: log.double().requires_grad_() for name, log in logs.items()}
    value = likelihood.gradient(leaves)
    assert abs(value - likelihood.value({name: leaf.detach() for name, leaf in leaves.items()})) < 1e-9 * abs(value)
    for name, leaf in leaves.items():
        for k in range(leaf.numel()):
            step = torch.zeros_like(leaf).flatten()
            step[k] = STEP
            ends = [likelihood.value({**leaves, name: leaf.detach() + sign * step.view_as(leaf)}) for sign in (1, -1)]
            assert leaf.grad is not None
            assert abs((ends[0] - ends[1]) / (2 * STEP) - float(leaf.grad.flatten()[k])) < 1e-5 * (
                1 + abs(float(leaf.grad.flatten()[k]))
            )


def test_noise_and_irrelevant_inputs_are_found():
    g = seeded()
    x = torch.rand(200, 3, generator=g).double() * 4 - 2
    y = torch.sin(2 * x[:, 0]) + 0.3 * torch.randn(200, generator=g)
    tuned = ntkgp.tune(ntkgp.mlp(3, width=math.inf, activation=Erf()), x, y, starts=1, steps=60, generator=g)
    assert abs(float(torch.as_tensor(tuned.noise_var)) ** 0.5 - 0.3) < 0.04
    scales: Tensor = tuned.input_scales["scales"]
    assert scales[0] > 5 * scales[1:].max()
    new = torch.rand(200, 3, generator=g).double() * 4 - 2
    p = tuned.fit(x, y).predict(new)
    error = p.mean - torch.sin(2 * new[:, 0])
    assert error.square().mean().sqrt() < 0.15
    assert float((error.abs() < 2 * p.std).double().mean()) >= 0.85
