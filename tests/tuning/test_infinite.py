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
from tests.support.infinite import erf_kernel

STEP = 1e-5


@pytest.mark.parametrize(("outputs", "noises"), [(1, 1), (2, 1), (3, 3)])
@pytest.mark.parametrize("activation", [nn.ReLU(), Erf(), nn.SiLU()], ids=["relu", "erf", "silu"])
def test_the_gradient_is_that_of_the_likelihood(activation: nn.Module, outputs: int, noises: int):
    """300 points take more than one tile, so that a tile that is missing or counted twice shows."""
    g = seeded()
    x, y = torch.randn(300, 3, generator=g).double(), torch.randn(300, outputs, generator=g).double()
    net = nn.Sequential(InputScales(torch.ones(3)), ntkgp.mlp(3, outputs, width=math.inf, activation=activation, depth=1))
    problem = build_problem(net, Source(x, y, 1.0), dtype=torch.float64)
    names = list(problem.network.anchor)
    likelihood = Likelihood(problem, [names[:2], names[2:]], base={names[0]: problem.network.anchor[names[0]]})
    logs = {
        PRIOR: torch.tensor([0.3, -0.5]), NOISE: torch.tensor([-1.0, -0.3, -2.0])[:noises],
        "0.scale": torch.tensor([0.1, -0.2, 0.4]), names[0]: torch.tensor(0.2),
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


def test_tiles_in_threads_give_the_gradient_of_one_thread():
    """Tiles share the module whose scales they swap; each must see its own."""
    g = seeded()
    x, y = torch.randn(1500, 3, generator=g).double(), torch.randn(1500, generator=g).double()
    net = nn.Sequential(InputScales(torch.ones(3)), ntkgp.mlp(3, width=math.inf, activation=Erf(), depth=1))
    problem = build_problem(net, Source(x, y, 1.0), dtype=torch.float64)
    likelihood = Likelihood(problem, [list(problem.network.anchor)])
    before = torch.get_num_threads()

    def gradient(threads: int) -> Tensor:
        leaf = torch.tensor([0.1, -0.2, 0.4]).double().requires_grad_()
        torch.set_num_threads(threads)
        likelihood.kernels({"0.scale": leaf}).backward(torch.ones(1).double(), torch.ones(1500, 1500).double())
        assert leaf.grad is not None
        return leaf.grad

    try:
        alone = gradient(1)
        for _ in range(10):
            assert torch.allclose(gradient(4), alone, rtol=1e-12)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("noise", ["shared", "outputs", "per point"])
def test_the_likelihood_of_several_outputs_is_that_of_separate_regressions(noise: str):
    g = seeded(1)
    x, y = torch.randn(30, 3, generator=g).double(), torch.randn(30, 3, generator=g).double()
    known = torch.rand(30, 3, generator=g).double() + 0.1 if noise == "per point" else torch.full((30, 3), 1.0).double()
    problem = build_problem(ntkgp.mlp(3, 3, width=math.inf, activation=Erf()), Source(x, y, known), dtype=torch.float64)
    logs = {PRIOR: torch.tensor([0.7]).double().log()}
    learned = {"shared": [0.3], "outputs": [0.3, 0.5, 0.3]}.get(noise)
    if learned:
        logs[NOISE] = torch.tensor(learned).double().log()
    variances = known if learned is None else torch.tensor(learned).double().expand(30, 3)
    kernel = torch.from_numpy(erf_kernel(x.numpy(), x.numpy(), 2, 3.5, [0.7, 0.7, 0.7]))
    expected = sum(
        float(
            torch.distributions.MultivariateNormal(torch.zeros(30).double(), kernel + variances[:, c].diag()).log_prob(y[:, c])
        )
        for c in range(3)
    )
    likelihood = Likelihood(problem, [list(problem.network.anchor)])
    assert abs(likelihood.value(logs) - expected) < 1e-9 * abs(expected)
    assert abs(likelihood.gradient({name: log.requires_grad_() for name, log in logs.items()}) - expected) < 1e-9 * abs(
        expected
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
