"""Kernels of infinite networks: the mean over finite networks, a formula written down anew, and what cannot be infinite."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ntkgp
from ntkgp.networks import (
    Cosine,
    Erf,
    InfiniteLinear,
    InputScales,
    NTKLinear,
    Residual,
    Sine,
    SumOfNetworks,
    TrigonometricInputs,
)  # fmt: skip
from ntkgp.networks.infinite.network import InfiniteNetwork
from tests.support.helpers import seeded
from tests.support.infinite import erf_kernel

INF = math.inf
WIDTH, NETWORKS = 256, 40


def points(count: int = 5, features: int = 3) -> Tensor:
    return torch.randn(count, features, generator=seeded(3), dtype=torch.float64)


def dense(width: float, into: float, out: float, **options: float) -> nn.Module:
    """A dense layer between hidden layers of this width, which may be infinite."""
    sizes = [width if size == INF else size for size in (into, out)]
    return InfiniteLinear(*sizes, **options) if width == INF else NTKLinear(*map(int, sizes), **options)  # pyright: ignore


def block(width: float) -> nn.Module:
    return Residual(nn.Sequential(nn.ReLU(), dense(width, INF, INF, weight_std=0.7)))


NETS = {
    "the paper's": lambda w: ntkgp.mlp(3, width=w).double(),
    "relu": lambda w: ntkgp.mlp(3, width=w, depth=3, activation=nn.ReLU(), weight_std=1.3, bias_std=0.4).double(),
    "silu": lambda w: ntkgp.mlp(3, width=w, activation=nn.SiLU(), output_scale=1.5).double(),
    "gelu, input scales": lambda w: nn.Sequential(
        InputScales(torch.tensor([0.3, 1.0, 2.0])), dense(w, 3, INF), nn.GELU(), dense(w, INF, 1)
    ).double(),
    "sine, trigonometric inputs": lambda w: nn.Sequential(
        TrigonometricInputs(-3.0, 3.0), dense(w, 6, INF, weight_std=2.0), Sine(), dense(w, INF, 1)
    ).double(),
    "residual": lambda w: nn.Sequential(dense(w, 3, INF), block(w), block(w), Erf(), dense(w, INF, 1)).double(),
    "sum": lambda w: SumOfNetworks(
        ntkgp.mlp(3, width=w, activation=Erf()), ntkgp.mlp(3, width=w, depth=1, activation=Cosine())
    ).double(),
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_it_is_the_mean_of_finite_networks(name: str):
    """A wrong constant in any layer moves some entry by many standard errors of the mean over the networks."""
    x = points()
    torch.manual_seed(0)
    found = torch.stack([ntkgp.kernel(NETS[name](WIDTH), x) for _ in range(NETWORKS)])
    mean, error = found.mean(dim=0), found.std(dim=0) / NETWORKS**0.5
    infinite = ntkgp.kernel(NETS[name](INF), x)
    assert ((mean - infinite).abs() <= 5 * error + 0.02 * infinite.diagonal().max()).all()
    assert error.max() < 0.04 * infinite.max()


@pytest.mark.parametrize("name", ["relu", "residual", "sum"])
def test_finite_networks_approach_it(name: str):
    x, infinite = points(), ntkgp.kernel(NETS[name](INF), points())
    torch.manual_seed(0)

    def error(width: int) -> float:
        errors = [(ntkgp.kernel(NETS[name](width), x) - infinite).norm() for _ in range(24)]
        return float(torch.stack(errors).median())

    slope = math.log(error(1024) / error(64)) / math.log(1024 / 64)
    assert -0.75 < slope < -0.3, slope  # as 1/√width


def test_against_the_formula():
    x, other, variances = points(7), points(4) + 0.5, [0.5, 2.0, 3.0]
    net = ntkgp.mlp(3, width=INF, activation=Erf()).double()
    priors = {
        f"{name}.{kind}": ("", v) for name, v in zip("024", variances, strict=True) for kind in ("weight_std", "bias_std")
    }
    found = InfiniteNetwork.of(net).block(x, other, priors).tangent[""]
    true = erf_kernel(x.numpy(), other.numpy(), 2, 3.5, variances)
    assert np.abs(found.numpy() - true).max() < 1e-12 * np.abs(true).max()


def test_the_shares_of_the_layers_add_up():
    x, net = points(), NETS["residual"](INF)
    names = [name for name, _ in net.named_parameters()]
    network = InfiniteNetwork.of(net)
    shares = network.block(x, x, {name: (name, 1.0) for name in names}).tangent
    assert set(shares) == set(names)
    assert torch.allclose(sum(shares.values(), torch.zeros(5, 5)), ntkgp.kernel(net, x), rtol=1e-12)
    last = ntkgp.fit(net, x, x[:, 0], noise_var=1.0, parameters=["4"])  # only the last layer has a tangent
    prior = (shares["4.weight_std"] + shares["4.bias_std"]).diagonal()
    assert torch.allclose(last.problem.operators.prior_variance, prior, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NETS)
def test_repeated_points(name: str, dtype: torch.dtype):
    """The kernel of repeated and nearly repeated points has no negative eigenvalues beyond rounding, and the right diagonal."""
    x = points(40).to(dtype)
    x = torch.cat([x, x, x + 1e-9, x * (1 + 1e-12)])
    net = NETS[name](INF).to(dtype)
    found, diag = ntkgp.kernel(net, x), ntkgp.kernel_diag(net, x)
    assert torch.equal(found, found.T)
    eps = torch.finfo(dtype).eps
    assert torch.allclose(found.diagonal(), diag, rtol=200 * eps**0.5 if dtype == torch.float32 else 1e-7)
    assert torch.linalg.eigvalsh(found.double()).min() > -100 * eps**0.5 * diag.max() * len(x) ** 0.5
    exact = ntkgp.kernel(NETS[name](INF), points(40))
    assert float((found[:40, :40] - exact).abs().max() / exact.max()) < 300 * eps**0.5


def test_several_outputs_are_independent():
    x, net = points(), ntkgp.mlp(3, 2, width=INF, activation=Erf()).double()
    found, one = (
        ntkgp.kernel(net, x).unflatten(0, (5, 2)).unflatten(2, (5, 2)),
        ntkgp.kernel(ntkgp.mlp(3, width=INF, activation=Erf()).double(), x),
    )
    for k in (0, 1):
        assert torch.equal(found[:, k, :, k], one)
        assert (found[:, k, :, 1 - k] == 0).all()


def test_blocks_do_not_depend_on_their_size():
    x, net = points(600), NETS["relu"](INF)
    whole = ntkgp.kernel(net, x)
    assert torch.allclose(whole[:5, 590:], ntkgp.kernel(net, x[:5], x[590:]), rtol=1e-12)
    assert torch.allclose(whole.diagonal(), ntkgp.kernel_diag(net, x), rtol=1e-7)


WRONG = {
    "needs scaling='fan_in'": lambda: ntkgp.mlp(2, width=INF, scaling="own_width"),
    "width must be a whole number or math.inf": lambda: ntkgp.mlp(2, width=10.5),
    "must be a whole number from 1": lambda: InfiniteLinear(INF, 0),
    "use NTKLinear": lambda: InfiniteLinear(3, 4),
    "weight_std of InfiniteLinear must be positive": lambda: InfiniteLinear(3, INF, weight_std=-1.0),
}  # fmt: skip
FIRST, LAST = InfiniteLinear(2, INF), InfiniteLinear(INF, 1)
NO_LIMIT = {
    "must end in InfiniteLinear": (FIRST, nn.ReLU()),
    "'1' .Softmax. does not act on each number separately": (FIRST, nn.Softmax(-1), LAST),
    "'1' .PReLU. has weights": (FIRST, nn.PReLU(), LAST),
    "'0' .Linear. comes before the first InfiniteLinear": (nn.Linear(2, 2), FIRST, LAST),
    "'2' .ReLU. must follow": (FIRST, nn.ReLU(), nn.ReLU(), LAST),
    "'1' .InfiniteLinear. must have in_features=inf": (FIRST, InfiniteLinear(2, INF)),
    "in_features must be the number of inputs": (LAST,),
    "must have infinite width before it": (Residual(nn.ReLU()), FIRST, LAST),
    "must add infinite networks": (SumOfNetworks(ntkgp.mlp(2, width=INF), ntkgp.mlp(2, 2, width=INF)),),
}


@pytest.mark.parametrize("message", WRONG)
def test_layers_that_cannot_be(message: str):
    with pytest.raises(ValueError, match=message):
        WRONG[message]()


@pytest.mark.parametrize("message", NO_LIMIT)
def test_networks_without_a_limit(message: str):
    with pytest.raises(ValueError, match=message):
        ntkgp.kernel(nn.Sequential(*NO_LIMIT[message]), torch.randn(3, 2))


def test_points_of_a_wrong_size():
    with pytest.raises(ValueError, match="expects points of 3 numbers, got shape"):
        ntkgp.kernel(ntkgp.mlp(3, width=INF), torch.randn(4, 2))
