"""Moments of activations, in closed form and by series, against direct numerical integration."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ntkgp
from ntkgp.networks import Absolute, Cosine, Erf, Gaussian, Sine
from ntkgp.networks.infinite.activations import moments_of
from ntkgp.networks.infinite.series import series_error, series_moments
from tests.support.infinite import moments

CLOSED = {
    "relu": nn.ReLU(), "leaky relu": nn.LeakyReLU(0.2), "absolute": Absolute(), "erf": Erf(), "gelu": nn.GELU(),
    "sine": Sine(), "cosine": Cosine(), "gaussian": Gaussian(), "identity": nn.Identity(),
}  # fmt: skip
QUADRATURE = {
    "softplus": nn.Softplus(), "steep softplus": nn.Softplus(beta=87.09), "softplus 10": nn.Softplus(beta=10.0),
    "silu": nn.SiLU(), "tanh": nn.Tanh(), "gelu by tanh": nn.GELU(approximate="tanh"), "sigmoid": nn.Sigmoid(),
}  # fmt: skip
VARIANCES = ((1.0, 1.0), (0.3, 2.0), (0.01, 0.02))
CORRELATIONS = (-1.0, -0.7, 0.0, 0.4, 0.95, 0.9999, 1.0)


def values(module: nn.Module, u: np.ndarray) -> np.ndarray:
    return module(torch.from_numpy(u)).numpy()


def slopes(module: nn.Module, u: np.ndarray) -> np.ndarray:
    at = torch.from_numpy(u).requires_grad_()
    return torch.autograd.grad(module(at).sum(), at)[0].numpy()


def numbers(*values: float) -> list[Tensor]:
    return [torch.tensor([value], dtype=torch.float64) for value in values]


def errors(module: nn.Module, a: float, b: float, rho: float) -> tuple[float, float]:
    inputs = numbers(a, b, rho * math.sqrt(a * b))
    closed = moments_of(module)
    found = closed(*inputs) if closed else series_moments(module, *inputs)
    true = moments([lambda u: values(module, u), lambda u: slopes(module, u)], a, b, rho)
    return abs(float(found[0]) - true[0]), abs(float(found[1]) - true[1])


@pytest.mark.parametrize("variances", VARIANCES)
@pytest.mark.parametrize("name", CLOSED)
def test_closed_forms(name: str, variances: tuple[float, float]):
    for rho in CORRELATIONS:
        assert max(errors(CLOSED[name], *variances, rho)) < 1e-10, rho


@pytest.mark.parametrize("variances", VARIANCES)
@pytest.mark.parametrize("name", QUADRATURE)
def test_quadratures(name: str, variances: tuple[float, float]):
    for rho in CORRELATIONS:
        assert max(errors(QUADRATURE[name], *variances, rho)) < 1e-6, rho


def test_the_bound_on_the_error_of_a_series_holds():
    """At a large variance tanh is nearly a step, and its series ends too early: the error is bounded by what is left out."""
    a = 9.0
    bounds = series_error(nn.Tanh(), torch.tensor([a], dtype=torch.float64))
    sizes = moments([np.tanh, lambda u: 1 - np.tanh(u) ** 2], a, a, 1.0)
    for rho in (0.9, 0.99, 0.999):
        with pytest.warns(ntkgp.NumericalWarning, match=r"may be off by .* \(relative\)"):
            found = errors(nn.Tanh(), a, a, rho)
        for error, bound, size in zip(found, bounds, sizes, strict=True):
            assert error <= bound * size + 1e-12
    assert 1e-7 < bounds[0] < 1e-4  # so the bound is no empty one
    with pytest.warns(ntkgp.NumericalWarning):
        equal = errors(nn.Tanh(), a, a, 1.0)
    assert equal[0] < 1e-12  # the remainder makes coinciding points exact


@pytest.mark.filterwarnings("ignore:the kernel of this activation:ntkgp.NumericalWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("module", [*CLOSED.values(), *QUADRATURE.values()], ids=[*CLOSED, *QUADRATURE])
def test_coinciding_points_have_finite_gradients(module: nn.Module, dtype: torch.dtype):
    """In any dtype the moments at coinciding, opposite and zero points are finite, and so are their derivatives."""
    a = torch.tensor([1.0, 1.0, 0.3, 0.0, 1e-30, 1e6], dtype=dtype, requires_grad=True)
    b = torch.tensor([1.0, 1.0, 0.3, 0.0, 1e-30, 1e6], dtype=dtype, requires_grad=True)
    c = torch.tensor([1.0, -1.0, 0.3 + 1e-8, 0.0, 1e-30, 1e6], dtype=dtype, requires_grad=True)
    closed = moments_of(module)
    found = closed(a, b, c) if closed else series_moments(module, a, b, c)
    total = found[0].sum() + found[1].sum()
    total.backward()
    assert torch.isfinite(total)
    assert all(t.grad is None or torch.isfinite(t.grad).all() for t in (a, b, c))


@pytest.mark.parametrize("module", [*CLOSED.values(), *QUADRATURE.values()], ids=[*CLOSED, *QUADRATURE])
def test_gradients(module: nn.Module):
    """Also those of ReLU, which are written by hand."""
    closed = moments_of(module)
    inputs = [t.requires_grad_() for t in numbers(1.2, 0.7, 0.5)]
    work = closed or (lambda a, b, c: series_moments(module, a, b, c))
    assert torch.autograd.gradcheck(lambda a, b, c: work(a, b, c), inputs, eps=1e-5, atol=1e-7)
