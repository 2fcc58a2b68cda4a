"""A posterior that has seen more is the one that would have seen it at once; the old one stays what it was."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import ntkgp
from tests.support.cases import by_name
from tests.support.helpers import METHODS, answers, each_method, seeded
from tests.support.oracle import error
from tests.support.unchanged import unchanged
from tests.support.updates import grid, in_steps, network, part, updated


@each_method
@pytest.mark.parametrize("name", ["two outputs", "noise per point", "weight used directly"])
def test_the_old_posterior_is_unchanged_and_may_branch(method: str, name: str):
    case, module = by_name(name), by_name(name).module()
    first = part(case, slice(0, 6))
    posterior = first.fit(METHODS[method], generator=seeded())
    before = answers(posterior, case.query)
    with unchanged(module):
        one = updated(posterior, case, slice(6, 7))
        one_before = answers(one, case.query)
        other = updated(posterior, case, slice(7, 9))  # a second successor, of another size
        later = updated(one, case, slice(7, 9))
        same = updated(posterior, case, slice(6, 7))
    for a, b in zip(before, answers(posterior, case.query), strict=True):
        assert torch.equal(a, b)
    for a, b, c in zip(one_before, answers(one, case.query), answers(same, case.query), strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c, rtol=1e-9, atol=1e-11)
    if method == "exact":
        for branch, rows in ((other, [*range(6), 7, 8]), (later, [*range(6), 6, 7, 8])):
            fresh = replace(part(case, slice(0, 9)), x=case.x[rows], y=case.y[rows])
            if isinstance(case.noise_var, Tensor):
                fresh = replace(fresh, noise_var=case.noise_var[rows])
            assert error(branch.predict(case.query).mean, fresh.fit(METHODS[method]).predict(case.query).mean) <= 1e-9


@pytest.mark.parametrize("method", ["exact", "low rank"])
def test_gradients_of_the_old_posterior_survive_an_update(method: str):
    """The memory is shared, and written to between the forward and the backward pass."""
    case = by_name("two outputs")
    posterior = updated(part(case, slice(0, 6)).fit(METHODS[method], generator=seeded()), case, slice(6, 7))
    x = case.query.clone().requires_grad_()
    (expected,) = torch.autograd.grad(posterior.predict(x).variance.sum(), x)
    total = posterior.predict(x).variance.sum()
    updated(posterior, case, slice(7, 8))
    (got,) = torch.autograd.grad(total, x)
    assert torch.equal(got, expected)


@each_method
@pytest.mark.parametrize(
    "name", ["noise per point, two outputs", "float32, two outputs", "weight used directly", "function as prior mean"]
)
def test_updated_posteriors_come_back_from_files(method: str, name: str, tmp_path: Path):
    case = by_name(name)
    posterior, path = in_steps(case, METHODS[method]), tmp_path / "posterior.safetensors"
    posterior.save(path)
    function = None if case.prior_mean is ntkgp.network_mean else case.prior_mean
    loaded = ntkgp.load(path, case.module(), prior_mean=function)
    for a, b in zip(answers(posterior, case.query), answers(loaded, case.query), strict=True):
        assert torch.equal(a, b)
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()
    a, b = (updated(p, case, slice(0, 2)) for p in (posterior, loaded))
    torch.testing.assert_close(a.predict(case.query).mean, b.predict(case.query).mean, rtol=1e-9, atol=1e-11)


def test_points_left_out_of_a_file_are_missed(tmp_path: Path):
    (x, y), net = grid(40), network()
    posterior = ntkgp.fit(net, [(x[:20], y[:20]), (x[20:], y[20:])], noise_var=0.1, method=ntkgp.LowRank(rank=2))
    posterior.update(x[:1], y[:1]).save(tmp_path / "p")
    with pytest.raises(ValueError, match=r"given as batches .* not saved in files"):
        ntkgp.load(tmp_path / "p", net).update(x[:1], y[:1])


def test_noise_of_the_new_points():
    (x, y), net = grid(12), network()
    posterior = ntkgp.fit(net, x[:10], y[:10], noise_var=0.1)
    assert posterior.update(x[10:], y[10:]).predict(x[:1]).noise_var is not None
    assert posterior.update(x[10:], y[10:], noise_var=0.1).predict(x[:1]).noise_var is not None
    other = posterior.update(x[10:], y[10:], noise_var=torch.tensor([0.2, 0.3]))
    assert other.predict(x[:1]).noise_var is None
    noise = torch.cat([torch.full((10,), 0.1), torch.tensor([0.2, 0.3])]).double()
    assert error(other.predict(x).mean, ntkgp.fit(net, x, y, noise_var=noise).predict(x).mean) <= 1e-7
    with pytest.raises(ValueError, match=r"noise_var is missing.*differed from point to point.*\(2,\)"):
        other.update(x[:2], y[:2])


def test_noise_per_output_is_inherited():
    (x, _), net, noise = grid(12), network(2), torch.tensor([[0.1, 0.4]])
    y = torch.stack([x[:, 0].sin(), x[:, 1]], dim=1)
    posterior = ntkgp.fit(net, x[:10], y[:10], noise_var=noise).update(x[10:], y[10:])
    fresh = ntkgp.fit(net, x, y, noise_var=noise)
    assert error(posterior.predict(x).mean, fresh.predict(x).mean) <= 1e-10
    assert torch.equal(posterior.predict(x[:1]).noise_var, fresh.predict(x[:1]).noise_var)  # pyright: ignore


@each_method
def test_chosen_parameters_stay(method: str):
    case = by_name("two outputs")
    names = ntkgp.networks.last_layer(case.module())
    first = part(case, slice(0, 8)).fit(METHODS[method], generator=seeded(), parameters=names)
    posterior, fresh = updated(first, case, slice(8, None)), case.fit(ntkgp.Exact(), parameters=names)
    a, b = posterior.predict(case.query), fresh.predict(case.query)
    assert error(a.mean, b.mean) <= {"exact": 1e-9, "low rank": 1e-4, "trained": 0.5}[method]
    assert bool((a.lower <= b.variance * (1 + 1e-9) + 1e-12).all())
    assert bool((b.variance <= a.upper * (1 + 1e-9) + 1e-12).all())


BAD = {
    "no y": ((torch.zeros(1, 2),), ValueError, "y is missing"),
    "another width": ((torch.zeros(1, 3), torch.zeros(1)), ValueError, r"shape \(M, 2\)"),
    "NaN": ((torch.full((1, 2), torch.nan), torch.zeros(1)), ValueError, "NaN"),
    "too many targets": ((torch.zeros(1, 2), torch.zeros(2)), ValueError, "y must have shape"),
    "two outputs": ((torch.zeros(1, 2), torch.zeros(1, 2)), ValueError, "1 output"),
    "batches and y": (([(torch.zeros(1, 2), torch.zeros(1))], torch.zeros(1)), TypeError, "x must be a torch.Tensor"),
}


@each_method
@pytest.mark.parametrize("what", BAD)
def test_refused(method: str, what: str):
    given, raises, words = BAD[what]
    (x, y), net = grid(6), network()
    posterior = ntkgp.fit(net, x, y, noise_var=0.1, method=METHODS[method], generator=seeded())
    with pytest.raises(raises, match=words):
        posterior.update(*given)  # pyright: ignore
