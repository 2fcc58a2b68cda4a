"""The paper's network and its input features."""

import math

import pytest
import torch
from torch import nn

import ntkgp
from tests.support.helpers import seeded


def test_mlp_has_the_papers_layers():
    net = ntkgp.mlp(3, out_features=2, width=16, depth=3)
    shapes = {name: tuple(p.shape) for name, p in net.named_parameters()}
    assert shapes == {
        "0.weight": (16, 3), "0.bias": (16,), "2.weight": (16, 16), "2.bias": (16,), "4.weight": (16, 16), "4.bias": (16,),
        "6.weight": (2, 16),
    }  # fmt: skip
    softplus = net[1]
    assert isinstance(softplus, nn.Softplus)
    assert softplus.beta == 87.09


@pytest.mark.parametrize("scaling", ["fan_in", "own_width"])
def test_mlp_computes_the_papers_formula(scaling: str):
    net = ntkgp.mlp(2, width=5, depth=2, scaling=scaling, output_scale=3.5, generator=seeded()).double()
    w1, b1, w2, b2, w3 = (p.detach() for p in net.parameters())
    x = torch.randn(4, 2, generator=seeded(1)).double()
    n1, n2, n3 = (2, 5, 5) if scaling == "fan_in" else (5, 5, 1)
    softplus = nn.Softplus(beta=87.09)
    h = softplus(x @ w1.T / math.sqrt(n1) + b1)
    h = softplus(h @ w2.T / math.sqrt(n2) + b2)
    torch.testing.assert_close(net(x), 3.5 * h @ w3.T / math.sqrt(n3))


def test_weights_have_the_given_spread():
    layer = ntkgp.networks.NTKLinear(300, 300, weight_std=2.0, bias_std=0.5, generator=seeded())
    assert layer.bias is not None
    assert layer.weight.std().item() == pytest.approx(2.0, rel=0.02)  # of 90000
    assert layer.bias.std().item() == pytest.approx(0.5, rel=0.15)  # of 300
    assert abs(layer.weight.mean().item()) <= 4 * 2.0 / 300


def test_the_generator_decides_the_weights():
    state = torch.random.get_rng_state()
    a, b, c = (ntkgp.mlp(2, width=8, generator=seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(next(a.parameters()), next(c.parameters()))


def test_the_kernel_settles_as_the_width_grows():
    """The point of the NTK parametrisation: the diagonal does not grow with the width, and its spread over seeds shrinks."""
    x = torch.ones(1, 2)
    diagonals = {
        width: torch.stack([ntkgp.kernel_diag(ntkgp.mlp(2, width=width, generator=seeded(s)), x)[0] for s in range(30)])
        for width in (16, 256)
    }
    assert float(diagonals[16].mean() / diagonals[256].mean()) == pytest.approx(1, rel=0.25)
    assert diagonals[256].std() < 0.5 * diagonals[16].std()


def test_own_width_scaling_has_the_large_kernel_of_the_literal_reading():
    x = torch.ones(1, 2)
    fan_in, own = (ntkgp.kernel_diag(ntkgp.mlp(2, scaling=s, generator=seeded()), x).item() for s in ("fan_in", "own_width"))
    assert 5 < fan_in < 100
    assert own > 100 * fan_in


def test_trigonometric_inputs():
    low, high = torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 10.0])
    features = ntkgp.networks.TrigonometricInputs(low, high)(torch.stack([low, (low + high) / 2, high]))
    ends_and_middle = torch.tensor([[0.0, 0, 1, 1], [1, 1, 0, 0], [0, 0, -1, -1]])
    torch.testing.assert_close(features, ends_and_middle, atol=1e-6, rtol=0)


def test_trigonometric_inputs_from_data():
    x = torch.tensor([[0.0, 7.0], [4.0, 7.0]])  # the second column is constant
    layer = ntkgp.networks.TrigonometricInputs.from_data(x, margin=0.25)
    torch.testing.assert_close(layer.low, torch.tensor([-1.0, 6.75]))
    torch.testing.assert_close(layer.high, torch.tensor([5.0, 8.25]))
    assert list(layer.parameters()) == []
    assert layer.double()(x.double()).dtype == torch.float64
