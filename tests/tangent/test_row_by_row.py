"""The proof that rows stay apart holds for plain networks, and for nothing that mixes them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ntkgp.tangent.factors.row_by_row import row_by_row

N = 4


def proved(forward: Callable[[Tensor, Tensor], Tensor], x: Tensor | None = None) -> bool:
    """Whether it is proved that `forward`, of x and the zeros added to a layer's output, keeps the rows of the zeros apart."""
    x = torch.randn(N, 3, generator=torch.Generator().manual_seed(0)) if x is None else x
    probe = torch.zeros((), requires_grad=True).expand(N, 3)
    return row_by_row(forward(x, probe), [probe, x])


W = torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
PLAIN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "layers and activations": lambda x, p: (torch.tanh((x @ W + p) * 2) @ W).sigmoid(),
    "with a bias": lambda x, p: torch.addmm(W[0], torch.relu(x + p), W),
    "a residual connection": lambda x, p: (x + p) / 2 - torch.nn.functional.softplus(x + p) @ W,
    "a column that multiplies each row": lambda x, p: (x + p) * (x > 0)[:, :1],
    "a matrix as wide as the batch": lambda x, p: (x + p) @ torch.ones(3, 1) * torch.eye(N),
    "one output, as a vector": lambda x, p: ((x + p) @ W[:, :1]).view(-1),
    "without the layer": lambda x, p: x @ W,
}
MIXED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "the mean of the batch": lambda x, p: x + p - (x + p).mean(dim=0),
    "a product from the left": lambda x, p: torch.ones(N, N) @ (x + p),
    "a product from the left, with an offset": lambda x, p: torch.addmm(W[0], torch.ones(N, N), x + p),
    "turned around": lambda x, p: (x + p).flip(0),
    "transposed": lambda x, p: (x + p).T.contiguous().view(N, 3),
    "chosen": lambda x, p: (x + p)[[1, 0, 2, 3]],
    "three axes viewed as two": lambda x, p: (torch.ones(2, 1, 1) * (x + p)).view(N, 6),
    "four axes on the way": lambda x, p: (torch.ones(1, 1, 1, 1) * (x + p)).view(N, 3),
    "normalised": lambda x, p: torch.softmax(x + p, dim=0),
    "a sum of all": lambda x, p: x * (x + p).sum(),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_networks_are_proved(name: str):
    assert proved(PLAIN[name])


@pytest.mark.parametrize("name", MIXED)
def test_nothing_else_is(name: str):
    assert not proved(MIXED[name])


def test_points_may_require_gradients():
    leaf = torch.randn(N, 3, requires_grad=True)
    assert proved(PLAIN["a residual connection"], leaf)
    assert proved(PLAIN["a residual connection"], leaf * 2)


def test_an_output_of_a_layer_that_is_used_at_all_points():
    x, probe = torch.randn(N, 3), torch.zeros((), requires_grad=True).expand(3)
    assert not row_by_row(x * 2 + probe, [probe, x])


def test_a_weight_that_requires_gradients_must_be_looked_at():
    """A layer's weight outside of its layer: a factor of rows, a term, or the matrix of a product."""
    weight = W.clone().requires_grad_()
    assert not proved(lambda x, p: (x + p) @ weight)
    assert not proved(lambda x, p: torch.addmm(weight[0], x + p, W))
    assert not proved(lambda x, p: torch.addmm(W[0], x + p, weight))
    assert not proved(lambda x, p: (x + p) * torch.zeros(N, 3, requires_grad=True))
