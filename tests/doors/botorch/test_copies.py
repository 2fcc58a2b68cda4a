"""Models can be copied and pickled: BoTorch's own code does both."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("botorch")  # which needs Python 3.11

import torch
from botorch.models.transforms import Normalize
from botorch.sampling import SobolQMCNormalSampler

import ntkgp
from ntkgp.botorch import NTKGPModel
from tests.doors.botorch.models import built, covariance, fitted, hill, net, uniform, wrapped

pytestmark = pytest.mark.usefixtures("unchecked")

MODELS: dict[str, Callable[[], NTKGPModel]] = {
    "built": lambda: built(3 * uniform(10, 2), module=net(), input_transform=Normalize(2)),
    "float32": lambda: built(uniform(10, 2).float(), hill(uniform(10, 2)).float(), module=net().float()),
    "wrapped": lambda: wrapped(outputs=2),
    "low rank": lambda: NTKGPModel.from_posterior(fitted(method=ntkgp.LowRank(rank=5))),
    "conditioned": lambda: wrapped().condition_on_observations(uniform(3, 2, seed=1), uniform(3, 1)),
    "some outputs": lambda: wrapped(outputs=2).subset_output([1]),
    "fantasies": lambda: wrapped().fantasize(uniform(5, 2, 2), SobolQMCNormalSampler(torch.Size([3]), seed=0)),
    "fantasies with gradients": lambda: wrapped().fantasize(
        uniform(5, 2, 2).requires_grad_(), SobolQMCNormalSampler(torch.Size([3]), seed=0)
    ),
}
WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy, "deep copy": copy.deepcopy, "pickle": lambda model: pickle.loads(pickle.dumps(model)),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", MODELS)
def test_copies_answer_bit_for_bit(kind: str, way: str):
    model, query = MODELS[kind](), uniform(4, 2, seed=1)
    other = WAYS[way](model)
    assert torch.equal(model.posterior(query).mean, other.posterior(query).mean)
    assert torch.equal(covariance(model, query), covariance(other, query))
    assert other.batch_shape == model.batch_shape
    if not model.batch_shape:
        draws = [m.sample_paths(2, generator=torch.Generator().manual_seed(0))(query) for m in (model, other)]
        assert torch.equal(*draws)
        x, y = uniform(2, 2, seed=2), uniform(2, model.num_outputs)
        more = [m.condition_on_observations(x, y).posterior(query).mean for m in (model, other)]
        assert torch.equal(*more)


def test_a_deep_copy_of_fantasies_keeps_their_gradients():
    X = uniform(2, 2).requires_grad_()
    model = copy.deepcopy(wrapped().fantasize(X, SobolQMCNormalSampler(torch.Size([3]), seed=0)))
    (by_points,) = torch.autograd.grad(model.posterior(uniform(1, 2, seed=2)).mean.sum(), X)
    assert by_points.abs().sum() > 0
