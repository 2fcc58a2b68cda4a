"""Bad input after the door: queries, kernels, the paper's procedures, networks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkgp
from tests.support.unchanged import unchanged

pytestmark = pytest.mark.usefixtures("unchecked")

X, Y = torch.linspace(-1, 1, 12).view(6, 2), torch.linspace(0, 1, 6)
Posteriors = dict[str, ntkgp.posterior.Posterior]


def net() -> nn.Module:
    return ntkgp.mlp(2, width=8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def posteriors() -> Posteriors:
    trained = ntkgp.TrainedNetworks(rank=2)
    return {
        "exact": ntkgp.fit(net(), X, Y, noise_var=0.1),
        "trained": ntkgp.fit(net(), X, Y, noise_var=0.1, method=trained),
    }


QUERIES: dict[str, tuple[Any, type[Exception], str]] = {
    "another width": (torch.zeros(3, 5), ValueError, r"x must have shape \(M, 2\) as in fit, got \(3, 5\)"),
    "one point without its axis": (torch.zeros(2), ValueError, r"x must have shape \(M, 2\)"),
    "no points": (torch.zeros(0, 2), ValueError, "x must hold at least one point"),
    "integers": (torch.zeros(3, 2, dtype=torch.long), TypeError, "x must be real floating point"),
    "NaN": (torch.full((3, 2), torch.nan), ValueError, "x holds NaN or infinity in row 0"),
    "a list": ([[0.0, 0.0]], TypeError, "x must be a torch.Tensor"),
}


@pytest.mark.parametrize("method", ["exact", "trained"])
@pytest.mark.parametrize("ask", ["predict", "mean", "covariance"])
@pytest.mark.parametrize("what", QUERIES)
def test_a_posterior_refuses(posteriors: Posteriors, method: str, ask: str, what: str):
    x, raises, words = QUERIES[what]
    with pytest.raises(raises, match=words):
        getattr(posteriors[method], ask)(x)


@pytest.mark.parametrize("method", ["exact", "trained"])
@pytest.mark.parametrize(
    ("noise", "words"),
    [(0.0, "positive"), (torch.ones(4), r"\(3,\), \(3, 1\) or \(1, 1\), got \(4,\)")],
    ids=["zero", "wrong shape"],
)
def test_predict_refuses_noise(posteriors: Posteriors, method: str, noise: float | Tensor, words: str):
    with pytest.raises(ValueError, match=f"noise_var .*{words}"):
        posteriors[method].predict(X[:3], noise_var=noise)


@pytest.mark.parametrize("method", ["exact", "trained"])
def test_queries_of_another_dtype_are_welcome(posteriors: Posteriors, method: str):
    """float64 points for a float32 problem: no error, and the answer keeps the dtype of y."""
    a, b = (posteriors[method].predict(x) for x in (X[:3], X[:3].double()))
    assert a.mean.dtype == b.mean.dtype == torch.float32
    torch.testing.assert_close(a.mean, b.mean)


NAN = torch.full((3, 2), torch.nan)
CALLS: dict[str, tuple[Callable[[nn.Module], Any], type[Exception], str]] = {
    "kernel, x1": (lambda m: ntkgp.kernel(m, NAN), ValueError, "x holds NaN"),
    "kernel, x2": (lambda m: ntkgp.kernel(m, X, NAN), ValueError, "x2 holds NaN"),
    "kernel, x2 of another width": (lambda m: ntkgp.kernel(m, X, torch.zeros(3, 4)), ValueError, "x2"),
    "kernel_diag": (lambda m: ntkgp.kernel_diag(m, X.long()), TypeError, "x must be real"),
    "kernel of no module": (lambda m: ntkgp.kernel(torch.sin, X), TypeError, "module must be"),  # pyright: ignore
    "partial_svd, rank": (lambda m: ntkgp.partial_svd(m, X, 7), ValueError, r"rank must be at most .* got 7"),
    "partial_svd, x": (lambda m: ntkgp.partial_svd(m, NAN, 1), ValueError, "x holds NaN"),
    "mean, y": (lambda m: ntkgp.train_posterior_mean(m, X, Y[:3], noise_var=1.0), ValueError, "y must have shape"),
    "mean, noise": (lambda m: ntkgp.train_posterior_mean(m, X, Y, noise_var=-1.0), ValueError, "noise_var must be positive"),
    "covariance, rank": (lambda m: ntkgp.train_posterior_covariance(m, X, 0, noise_var=1.0), ValueError, "rank must be at"),
    "covariance, tail": (lambda m: ntkgp.train_posterior_covariance(m, X, 1, tail=-1, noise_var=1.0), ValueError, "tail must"),
    "plan, rank": (lambda m: ntkgp.plan_training(m, X, Y, noise_var=1.0, rank=9), ValueError, "rank must be at most"),
    "plan, y": (lambda m: ntkgp.plan_training(m, X, Y.long(), noise_var=1.0), TypeError, "y must be real"),
    "the marker called": (lambda m: ntkgp.network_mean(X), TypeError, "network_mean is a marker"),
    "mlp without width": (lambda m: ntkgp.mlp(2, width=0), ValueError, "width and depth must be at least 1"),
    "unknown scaling": (lambda m: ntkgp.mlp(2, scaling="fan_out"), ValueError, "scaling must be 'fan_in' or 'own_width'"),
    "an empty range": (lambda m: ntkgp.networks.TrigonometricInputs(1.0, 1.0), ValueError, "high must be above low"),
}  # fmt: skip


@pytest.mark.parametrize("what", CALLS)
def test_other_doors_refuse(what: str):
    call, raises, words = CALLS[what]
    module = net()
    with unchanged(module), pytest.raises(raises, match=words):
        call(module)
