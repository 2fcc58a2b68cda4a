"""J(x) as an operator: by layer factors and by autodiff, against the oracle's matrix."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntkgp
from ntkgp._system.check_module import prior_scales
from ntkgp.tangent import jacobian as jacobian_module
from ntkgp.tangent.jacobian import Jacobian
from ntkgp.tangent.layout import ParameterLayout
from ntkgp.tangent.network import PureNetwork
from ntkgp.tangent.tangent import Tangent
from tests.support import modules, oracle
from tests.support.cases import NETWORKS, Case, by_name, every
from tests.support.oracle import error

BAR = {torch.float64: 1e-12, torch.float32: 1e-5}
each_dtype = pytest.mark.parametrize("dtype", list(BAR), ids=["float64", "float32"])
each_way = pytest.mark.parametrize("factored", [True, False], ids=["factored", "autodiff"])


def tangent_of(case: Case, dtype: torch.dtype, factored: bool) -> Tangent:
    network = PureNetwork(case.module(), dtype)
    return Tangent(network, case.x, case.outputs, prior_scales(case.prior_var, list(network.anchor)), factored=factored)


def order_of(tangent: Tangent) -> Tensor:
    """Where each of the tangent's parameters stands among the oracle's, which follow named_parameters."""
    shapes = {name: p.shape for name, p in tangent.network.anchor.items()}
    names = ParameterLayout(shapes)
    return tangent.layout.join(names.split(torch.arange(names.size, dtype=torch.float64))).long()


@cache
def _truth(name: str) -> tuple[Tensor, Tensor]:
    case = by_name(name)
    return tuple(oracle.jacobian(case.module(), x, case.prior_var) for x in (case.x, case.query))  # pyright: ignore


def products(tangent: Tangent, case: Case, seed: int = 0) -> dict[str, Tensor]:
    """Everything a Jacobian answers, with vectors given in the oracle's order of parameters."""
    dtype, order = tangent.network.dtype, order_of(tangent)
    jacobian, other = tangent.at(case.x), tangent.at(case.query)
    rows, size = jacobian.shape
    v, u = vectors(rows, size, seed)
    back = torch.empty(size, u.shape[1], dtype=dtype)
    back[order] = jacobian.rmatmat(u.to(dtype))
    return {
        "J v": jacobian.matmat(v[order].to(dtype)),
        "Jᵀ u": back,
        "kernel": jacobian.gram(),
        "cross kernel": jacobian.cross(other),
        "diag": jacobian.diag(),
        "normal matrix": normal_matrix(jacobian, weights(rows).to(dtype))[order.argsort()][:, order.argsort()],
        "entries": jacobian.dense()[:, order.argsort()],
    }


def normal_matrix(jacobian: Jacobian, weights: Tensor, **options: Any) -> Tensor:
    """JᵀWJ from its lower triangle, which is all that is formed."""
    size = jacobian.shape[1]
    found = torch.full((size, size), torch.nan, dtype=weights.dtype).triu(1).nan_to_num(nan=7.0)
    jacobian.add_normal_matrix(found, weights, **options)
    return found.tril() + found.tril(-1).T


def weights(rows: int) -> Tensor:
    return torch.linspace(0.5, 2, rows, dtype=torch.float64)


def vectors(rows: int, size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(length, 3, generator=g, dtype=torch.float64) for length in (size, rows))  # pyright: ignore


@every(NETWORKS)
@each_way
def test_equals_the_oracle(case: Case, factored: bool):
    j, j2 = _truth(case.name)
    v, u = vectors(*j.shape)
    expected = {"J v": j @ v, "Jᵀ u": j.T @ u, "kernel": j @ j.T, "cross kernel": j @ j2.T, "diag": j.square().sum(dim=1),
                "normal matrix": j.T * weights(len(j)) @ j, "entries": j}  # fmt: skip
    got = products(tangent_of(case, torch.float64, factored), case)
    assert {name: error(got[name], expected[name]) for name in expected if error(got[name], expected[name]) > 1e-12} == {}


@pytest.mark.parametrize("columns", [1, 5, 40, 200])
def test_many_columns(columns: int):
    """Layers narrower than half the columns are multiplied as rows, the others by factors."""
    case = by_name("paper mlp")
    tangent, j = tangent_of(case, torch.float64, factored=True), _truth(case.name)[0]
    jacobian, g = tangent.at(case.x), torch.Generator().manual_seed(0)
    j = j[:, order_of(tangent)]
    v, u = (torch.randn(length, columns, generator=g, dtype=torch.float64) for length in reversed(j.shape))
    assert error(jacobian.matmat(v), j @ v) <= 1e-12
    assert error(jacobian.rmatmat(u), j.T @ u) <= 1e-12


def test_the_gram_matrix_in_pieces(monkeypatch: pytest.MonkeyPatch):
    """Several pieces of points, several blocks of columns, and every point counted once."""
    case, seen = by_name("two outputs"), list[int]()
    tangent = tangent_of(case, torch.float64, factored=True)
    j = _truth(case.name)[0][:, order_of(tangent)]
    monkeypatch.setattr(jacobian_module, "working_bytes", lambda device: 8 * 3 * j.shape[1] * case.outputs * 5)
    monkeypatch.setattr(jacobian_module, "GRAM_COLUMNS", 7)
    found = normal_matrix(tangent.at(case.x), weights(len(j)), done=seen.append)
    assert len(seen) > 1
    assert sum(seen) == len(case.x)
    assert error(found, j.T * weights(len(j)) @ j) <= 1e-12
    for skip in (0, 1, 7, len(case.x)):  # a sum that already has the first points
        rest = j[skip * case.outputs :]
        found = normal_matrix(tangent.at(case.x), weights(len(j)), skip=skip)
        assert error(found + torch.eye(len(found)).double(), rest.T * weights(len(j))[skip * case.outputs :] @ rest
                     + torch.eye(len(found)).double()) <= 1e-12  # fmt: skip
    blocks = list(tangent.at(case.x).dense_blocks(j))
    assert len(blocks) > 1
    assert error(torch.cat([rows for _, rows in blocks]), j) <= 1e-12
    assert [here.start for here, _ in blocks] == [0, *(here.stop for here, _ in blocks[:-1])]


@every(NETWORKS)
@each_dtype
def test_factored_equals_autodiff(case: Case, dtype: torch.dtype):
    fast, slow = (products(tangent_of(case, dtype, factored), case) for factored in (True, False))
    assert {name: error(fast[name], slow[name]) for name in fast if error(fast[name], slow[name]) > BAR[dtype]} == {}


@every([by_name(name) for name in ("two outputs", "cnn", "attention", "wide sequence layer", "prior variance per layer")])
@each_way
def test_products_are_adjoint(case: Case, factored: bool):
    jacobian = tangent_of(case, torch.float64, factored).at(case.x)
    v, u = vectors(*jacobian.shape, seed=1)
    left, right = u.T @ jacobian.matmat(v), jacobian.rmatmat(u).T @ v
    assert error(left, right) <= 1e-12


def left_to_autodiff(case: Case) -> set[str]:
    """Parameters without factors."""
    return set(Tangent(PureNetwork(case.module()), case.x, case.outputs).packing.slow.shapes)


LINEAR = ["paper mlp", "two outputs", "standard parametrisation", "in-place activations", "layer used twice"]
OTHERS = ["cnn", "strided cnn", "circular conv1d", "layer norm", "batch norm in eval mode", "group norm", "padded embedding"]


@pytest.mark.parametrize("name", [*LINEAR, "narrow sequence layer", "wide sequence layer", *OTHERS])
def test_known_layers_take_the_fast_path(name: str):
    assert left_to_autodiff(by_name(name)) == set()


@pytest.mark.parametrize(
    ("name", "slow"),
    [("shared weight", {"left.weight", "left.bias", "right.bias"}), ("tied embedding", {"embedding.weight"}),
     ("grouped convolution", {"0.weight", "0.bias"})],
)  # fmt: skip
def test_what_has_no_known_factors_falls_to_autodiff(name: str, slow: set[str]):
    assert left_to_autodiff(by_name(name)) == slow


@pytest.mark.parametrize("name", ["attention", "time-first sequences", "weight used directly"])
def test_layers_used_in_unknown_ways_fall_to_autodiff(name: str):
    assert left_to_autodiff(by_name(name))


@each_way
def test_chunks_of_rows_and_columns_join(factored: bool):
    """More points than a chunk holds (1024 by factors, 256 by autodiff) and more columns than autodiff takes at once (64)."""
    g = torch.Generator().manual_seed(0)
    module = nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    x, x2 = (torch.randn(n, 1, generator=g, dtype=torch.float64) for n in (1030, 300))
    tangent = Tangent(PureNetwork(module), x, 1, factored=factored)
    j, j2 = oracle.jacobian(module, x)[:, order_of(tangent)], oracle.jacobian(module, x2)[:, order_of(tangent)]
    jacobian, other = tangent.at(x), tangent.at(x2)
    v, u = (torch.randn(size, 70, generator=g, dtype=torch.float64) for size in (7, 1030))
    assert error(jacobian.matmat(v), j @ v) <= 1e-12
    assert error(jacobian.rmatmat(u), j.T @ u) <= 1e-12
    assert error(jacobian.gram(), j @ j.T) <= 1e-12
    assert error(jacobian.cross(other), j @ j2.T) <= 1e-12
    assert error(other.cross(jacobian), j2 @ j.T) <= 1e-12
    assert error(jacobian.diag(), j.square().sum(dim=1)) <= 1e-12


@pytest.mark.parametrize("name", ["paper mlp", "cnn", "attention"])
def test_no_columns_give_no_columns(name: str):
    case = by_name(name)
    jacobian = tangent_of(case, torch.float64, factored=True).at(case.x)
    rows, size = jacobian.shape
    assert jacobian.matmat(torch.zeros(size, 0).double()).shape == (rows, 0)
    assert jacobian.rmatmat(torch.zeros(rows, 0).double()).shape == (size, 0)


def test_factors_are_checked_even_with_one_point():
    """One sequence in a time-first layer looks like any other: the check must not be fooled by it."""
    case = by_name("time-first sequences")
    module, x = case.module(), case.x[:1]
    tangent = Tangent(PureNetwork(module), x, 2)
    j = oracle.jacobian(module, case.query)
    assert error(tangent.at(case.query).gram(), j @ j.T) <= 1e-12


@every(NETWORKS)
def test_public_kernel_is_that_of_the_paper(case: Case):
    """Equation (3): no prior variance in it."""
    module = case.module()
    j, j2 = oracle.jacobian(module, case.x), oracle.jacobian(module, case.query)
    assert error(ntkgp.kernel(module, case.x), j @ j.T) <= 1e-12
    assert error(ntkgp.kernel(module, case.x, case.query), j @ j2.T) <= 1e-12
    assert error(ntkgp.kernel_diag(module, case.x), j.square().sum(dim=1)) <= 1e-12


def _smooth(kind: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return modules.standard(2, width=4).double() if kind == "factored" else modules.Direct().double()


ANSWERS: dict[str, Callable[[ntkgp.posterior.Posterior, Tensor], Tensor]] = {
    "mean": lambda posterior, x: posterior.predict(x).mean,
    "variance": lambda posterior, x: posterior.predict(x).variance,
    "covariance": lambda posterior, x: posterior.covariance(x),
}


@pytest.mark.parametrize("kind", ["factored", "autodiff"])
@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("method", [ntkgp.Exact(), ntkgp.TrainedNetworks(rank=2)], ids=["exact", "trained"])
def test_predictions_are_differentiable_in_x(kind: str, answer: str, method: ntkgp.Exact | ntkgp.TrainedNetworks):
    case = by_name("two outputs")
    posterior = ntkgp.fit(_smooth(kind), case.x, case.y, noise_var=0.1, method=method, prior_mean=ntkgp.network_mean)
    x = case.query[3:6].clone().requires_grad_()
    # Differences of networks divided by a signal of 1e-4 lose four digits, which steps of 1e-4 leave enough of.
    assert torch.autograd.gradcheck(lambda x: ANSWERS[answer](posterior, x), (x,), eps=1e-4, atol=1e-6, rtol=1e-5)
    assert not ANSWERS[answer](posterior, x.detach()).requires_grad


def test_large_images_are_recorded_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch):
    """Patches of an image take more room than its factors: chunks must follow what is held while they are recorded."""
    module = nn.Sequential(nn.Conv2d(1, 4, 5), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1)).double()
    x = torch.randn(9, 1, 20, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tangent, sizes = Tangent(PureNetwork(module), x, 1), []
    record = tangent.chunk
    monkeypatch.setattr(tangent, "chunk", lambda x, *check: sizes.append(len(x)) or record(x, *check))
    monkeypatch.setattr("ntkgp.tangent.tangent.working_bytes", lambda device: 500_000)
    j = oracle.jacobian(module, x)[:, order_of(tangent)]
    assert error(tangent.at(x).gram(), j @ j.T) <= 1e-12
    patches = 16 * 16 * 25 * 8  # bytes, of one image
    assert 1 <= max(sizes) <= 500_000 // patches
    assert sum(sizes) == 9 + 1  # each image once, and one to see what is kept of it
