"""Queries and observations of a wrong kind or shape: a sentence that names the argument."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("botorch")  # which needs Python 3.11

import torch
from botorch.models.transforms import Normalize, Standardize
from botorch.sampling import SobolQMCNormalSampler

import ntkgp
from ntkgp.botorch import NTKGPModel
from tests.doors.botorch.models import built, fitted, hill, net, uniform, wrapped

# The library itself must object, not the shape checker of these tests.
pytestmark = pytest.mark.usefixtures("unchecked")

X, Y, NAN = uniform(10, 2), hill(uniform(10, 2)), torch.nan


def sampler(count: int = 3) -> SobolQMCNormalSampler:
    return SobolQMCNormalSampler(torch.Size([count]), seed=0)


def fantasies() -> NTKGPModel:
    """Of batch shape (3, 5)."""
    return wrapped().fantasize(uniform(5, 2, 2), sampler())


POINTS: dict[str, tuple[Any, type[Exception], str]] = {
    "one point without an axis": (X[0], ValueError, r"X must have shape \(\.\.\., q, d\), got \(2,\); .* X\.unsqueeze\(0\)"),
    "a number": (X[0, 0], ValueError, r"X must have shape \(\.\.\., q, d\), got \(\)"),
    "a list": (X.tolist(), TypeError, r"X must be a torch\.Tensor, got list; use torch\.as_tensor\(X\)"),
    "an array": (X.numpy(), TypeError, r"X must be a torch\.Tensor, got ndarray"),
    "None": (None, TypeError, "X must be a torch.Tensor, got NoneType"),
    "no points": (X[:0], ValueError, r"X must hold at least one point, got shape \(0, 2\)"),
    "batches of no points": (uniform(3, 0, 2), ValueError, r"X must hold at least one point, got shape \(3, 0, 2\)"),
    "no batches": (uniform(0, 3, 2), ValueError, r"X must hold at least one point, got shape \(0, 3, 2\)"),
    "another width": (uniform(4, 3), ValueError, r"X must have shape \(\.\.\., q, 2\) as in fit, got \(4, 3\)"),
    "batches of another width": (
        uniform(5, 4, 1),
        ValueError,
        r"X must have shape \(\.\.\., q, 2\) as in fit, got \(5, 4, 1\)",
    ),
    "integers": (X.long(), TypeError, "real floating point"),
    "NaN": (X * NAN, ValueError, "NaN"),
}
ASKS: dict[str, Callable[[Any], object]] = {
    "posterior": lambda x: wrapped().posterior(x),
    "low rank": lambda x: NTKGPModel.from_posterior(fitted(method=ntkgp.LowRank(rank=5))).posterior(x),
    "posterior of some outputs": lambda x: wrapped(outputs=2).posterior(x, output_indices=[1]),
    "fantasies": lambda x: fantasies().posterior(x),
    "paths": lambda x: wrapped().sample_paths(2)(x),
}


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("what", POINTS)
def test_queries(what: str, ask: str):
    points, kind, words = POINTS[what]
    with pytest.raises(kind, match=words):
        ASKS[ask](points)


def test_queries_before_a_transform():
    model = built(3 * X, module=net(), input_transform=Normalize(2))
    for points in (X[0], X[0, 0]):
        with pytest.raises(ValueError, match="X must have shape"):
            model.posterior(points)


def test_a_query_whose_batches_do_not_fit_those_of_the_fantasies():
    model = fantasies()
    for batch in ((2,), (4, 5)):
        with pytest.raises(ValueError, match=rf"must broadcast, got \({', '.join(map(str, batch))},?\) of X, \(3, 5\) of f"):
            model.posterior(uniform(*batch, 1, 2))
    for batch in ((), (5,), (1, 5), (3, 5), (2, 3, 5)):
        assert model.posterior(uniform(*batch, 4, 2)).mean.shape == (*torch.broadcast_shapes(batch, (3, 5)), 4, 1)


OBSERVATIONS: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "one point without an axis": (X[0], Y[0], ValueError, r"X must have shape \(\.\.\., n, 2\) and Y .*, got \(2,\)"),
    "targets without a column": (X[:3], Y[:3, 0], ValueError, r"Y \(\.\.\., n, 1\), got \(3, 2\) and \(3,\)"),
    "more targets": (X[:3], Y[:4], ValueError, r"got \(3, 2\) and \(4, 1\)"),
    "another width": (uniform(3, 3), Y[:3], ValueError, r"X must have shape \(\.\.\., q, 2\) as in fit, got \(3, 3\)"),
    "another width in batches": (uniform(4, 3, 3), uniform(4, 3, 1), ValueError, r"as in fit, got \(4, 3, 3\)"),
    "batches that do not fit": (
        uniform(2, 3, 2), uniform(4, 3, 1), ValueError, r"batch shapes must broadcast, got \(2,\) of X, \(4,\) of Y"),
    "a list": (X[:3].tolist(), Y[:3], TypeError, "X must be a torch.Tensor, got list"),
    "a list of targets": (X[:3], Y[:3].tolist(), TypeError, "Y must be a torch.Tensor, got list"),
    "NaN in X": (X[:3] * NAN, Y[:3], ValueError, "NaN"),
    "NaN in Y": (X[:3], Y[:3] * NAN, ValueError, "Y holds NaN or infinity"),
    "NaN in batches of Y": (uniform(2, 3, 2), uniform(2, 3, 1) * NAN, ValueError, "Y holds NaN or infinity"),
    "NaN in batches of X": (uniform(2, 3, 2) * NAN, uniform(2, 3, 1), ValueError, "X holds NaN or infinity"),
}  # fmt: skip


@pytest.mark.parametrize("what", OBSERVATIONS)
def test_observations(what: str):
    x, y, kind, words = OBSERVATIONS[what]
    with pytest.raises(kind, match=words):
        wrapped().condition_on_observations(x, y)


def test_observations_whose_batches_do_not_fit_those_of_the_fantasies():
    with pytest.raises(ValueError, match=r"\(2,\) of X, \(2,\) of Y, .*, \(3, 5\) of fantasies"):
        fantasies().condition_on_observations(uniform(2, 1, 2), uniform(2, 1, 1))


@pytest.mark.parametrize("batch", [(), (2,)])
def test_noise_of_observations(batch: tuple[int, ...]):
    x, y = uniform(*batch, 3, 2), uniform(*batch, 3, 1)
    for noise, words in (
        (torch.ones(5, 1), r"noise must broadcast to \(\.\.\., 3, 1\), one per observation, got \(5, 1\)"),
        (-torch.ones(3, 1), "noise must be positive"),
        (torch.full((3, 1), NAN), "noise must be positive"),
    ):
        with pytest.raises(ValueError, match=words):
            wrapped().condition_on_observations(x, y, noise=noise.double())
    with pytest.raises(TypeError, match=r"noise must be a torch\.Tensor, got float"):
        wrapped().condition_on_observations(x, y, noise=0.1)  # pyright: ignore[reportArgumentType]


def test_noise_of_queries():
    model, query = wrapped(), uniform(3, 2)
    for noise, kind, words in (
        (torch.ones(4, 1), ValueError, r"observation_noise must broadcast to \(3, 1\), got \(4, 1\)"),
        (-torch.ones(3, 1), ValueError, "observation_noise must be non-negative and finite"),
        (0.5, TypeError, "observation_noise must be True, False or a torch.Tensor, got 0.5"),
        ("some", TypeError, "observation_noise must be True, False or a torch.Tensor, got 'some'"),
    ):
        with pytest.raises(kind, match=words):
            model.posterior(query, observation_noise=noise)  # pyright: ignore[reportArgumentType]
    free = model.posterior(query, observation_noise=torch.zeros(1, 1)).variance
    assert torch.equal(free, model.posterior(query).variance)


@pytest.mark.parametrize("outputs", [[], [2], [-3], ["a"], [0.5], 0, None])
def test_outputs(outputs: Any):
    words = "expected a list of at least one index from -2 to 1"
    with pytest.raises(ValueError, match=words):
        wrapped(outputs=2).subset_output(outputs)
    if outputs is not None:
        with pytest.raises(ValueError, match=words):
            wrapped(outputs=2).posterior(X, output_indices=outputs)


def test_points_of_fantasies():
    for points, kind in ((X[0], ValueError), (X.tolist(), TypeError)):
        with pytest.raises(kind, match="X must"):
            wrapped().fantasize(points, sampler())  # pyright: ignore[reportArgumentType]


def moments(model: NTKGPModel, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return model.posterior(query).mean, model.posterior(query).variance


@pytest.mark.parametrize("batch", [(), (4,)])
def test_nothing_new_changes_nothing(batch: tuple[int, ...]):
    """As for SingleTaskGP: acquisition functions condition on pending points even if there are none."""
    model, query = wrapped(), uniform(3, 2)
    same = model.condition_on_observations(uniform(*batch, 0, 2), uniform(*batch, 0, 1))
    for a, b in zip(moments(same, query), moments(model, query), strict=True):
        torch.testing.assert_close(a, b.expand_as(a), rtol=0, atol=1e-12)
    assert same.batch_shape == batch
    assert model.fantasize(uniform(*batch, 0, 2), sampler()).batch_shape == (3, *batch)


TRAINING: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "points without features": (X[:, 0], Y, ValueError, r"train_X must have shape \(n, d\) and train_Y \(n, m\), got \(10,\)"),
    "features of no columns": (X[:, :0], Y, ValueError, r"train_X must have shape .* at least one, got \(10, 0\)"),
    "targets of no columns": (X, Y[:, :0], ValueError, r"train_X must have shape .* at least one, got .* \(10, 0\)"),
    "batches": (uniform(2, 5, 2), uniform(2, 5, 1), ValueError, "batches of models are not supported"),
    "integers": (X.long(), Y, TypeError, r"train_X must be real floating point, got torch.int64; use train_X.double\(\)"),
    "integer targets": (X, Y.long(), TypeError, "train_Y must be real floating point, got torch.int64"),
    "complex": (X.to(torch.complex64), Y, TypeError, "train_X must be real floating point, got torch.complex64"),
    "another device": (X.to("meta"), Y, ValueError, "train_X is on meta but train_Y is on cpu"),
    "targets whose squares overflow": (X, Y * 1e160, ValueError, r"train_Y holds values as large as .*e\+1.*; rescale train_Y"),
    "targets too large for float32": (X, Y.float() * 1e25, ValueError, r"their squares overflow in torch\.float32"),
}


@pytest.mark.parametrize("what", TRAINING)
def test_training_data(what: str):
    x, y, kind, words = TRAINING[what]
    with pytest.raises(kind, match=words):
        built(x, y, module=net(), outcome_transform=Standardize(1))


def test_answers_are_finite():
    """One overflows when the transform is undone, the other in the dtype of the query."""
    wide = Standardize(1)
    wide(torch.tensor([[-1e160], [1e160]]).double())
    wide.eval()
    answer = r"the mean or variance of the posterior at X is NaN or overflows in torch\.float"
    for model, points in (
        (NTKGPModel.from_posterior(fitted(), outcome_transform=wide), X),
        (built(X, Y * 1e30, module=net(), outcome_transform=None, noise_var=1e58), X.float()),
    ):
        with pytest.raises(ValueError, match=answer):
            model.posterior(points)
    for part in moments(built(X, Y * 1e100, module=net()), X):  # large, but its squares are finite
        assert part.isfinite().all()
