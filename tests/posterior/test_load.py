"""A posterior comes back from its file bit for bit, or not at all."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ntkgp
from ntkgp.posterior.lowrank.posterior import LowRankPosterior
from ntkgp.posterior.trained.covariance import CovarianceEstimate
from ntkgp.tangent import tangent as tangent_module
from ntkgp.tangent.factors.layers import Layer
from ntkgp.tangent.factors.recording import LayerFactors
from tests.support.cases import Case, by_name, every
from tests.support.exact import kernel_form
from tests.support.files import assert_same_bits, fitted
from tests.support.helpers import METHODS, answers, each_method, seeded
from tests.support.unchanged import unchanged

CHOSEN = [by_name(name) for name in (
    "noise per point, two outputs", "one output as a column", "float32, two outputs", "weight used directly",
    "batch norm in eval mode", "prior variance per layer", "network as prior mean", "function as prior mean", "tied embedding",
)]  # fmt: skip
# The shape checker of these tests draws random numbers of its own; and it is slow with functions inside of functions.
pytestmark = pytest.mark.usefixtures("unchecked")


def function_of(case: Case) -> Callable[[Tensor], Tensor] | None:
    """What has to be passed again."""
    return None if case.prior_mean is ntkgp.network_mean else case.prior_mean


def round_trip(posterior: ntkgp.posterior.Posterior, case: Case, path: Path, draws: int = 3) -> ntkgp.posterior.Posterior:
    """Loaded, with the same answers, and saved again as the same bytes."""
    posterior.save(path)
    loaded = ntkgp.load(path, case.module(), prior_mean=function_of(case))
    assert_same_bits(posterior, loaded, case.query, draws)
    again = path.with_name("again.safetensors")
    loaded.save(again)
    assert again.read_bytes() == path.read_bytes()
    return loaded


@every(CHOSEN)
@each_method
def test_posteriors_come_back(case: Case, method: str, path: Path):
    round_trip(fitted(case, method), case, path)


@each_method
def test_chosen_parameters(method: str, path: Path):
    case = by_name("two outputs")
    posterior = case.fit(METHODS[method], generator=seeded(), parameters=ntkgp.networks.last_layer(case.module()))
    loaded = round_trip(posterior, case, path)
    assert 0 < len(loaded.state().facts["prior_std"]) < len(list(case.module().parameters()))


@pytest.mark.parametrize("method", [
    ntkgp.Exact(dtype=torch.float32),
    ntkgp.LowRank(rank=3, dtype=torch.float64, solver=ntkgp.CGLS(tol=1e-3)),
    ntkgp.LowRank(rtol=0.5, confidence=0.9),
    ntkgp.TrainedNetworks(rank=2, trainer=ntkgp.Adam(lr=1.0, patience=1), covariance=ntkgp.posterior.PaperCovariance()),
], ids=["exact in float32", "low rank in float64", "low rank by rtol", "the paper's training"])  # fmt: skip
@pytest.mark.parametrize("name", ["float32"])
def test_options_come_back(method: ntkgp.Exact | ntkgp.LowRank | ntkgp.TrainedNetworks, name: str, path: Path):
    case = by_name(name)
    posterior = case.fit(method, generator=seeded())
    loaded = round_trip(posterior, case, path)
    if isinstance(posterior, LowRankPosterior):
        assert isinstance(loaded, LowRankPosterior)
        for what in ("solver", "seconds", "side", "std_error", "why"):
            assert getattr(loaded, what) == getattr(posterior, what)


def test_networks_trained_elsewhere(path: Path):
    case = by_name("two outputs")
    plan = ntkgp.plan_training(case.module(), case.x, case.y, noise_var=case.noise_var, rank=2)
    copies = [case.module() for _ in plan.targets]
    with torch.no_grad():
        for k, copy in enumerate(copies):
            next(copy.parameters()).add_(0.01 * k)
    round_trip(plan.posterior(copies), case, path)


def test_batches_are_left_out(path: Path):
    case = by_name("two outputs")
    loader = DataLoader(TensorDataset(case.x, case.y), batch_size=5)
    posterior = ntkgp.fit(case.module(), loader, noise_var=case.noise_var, method=METHODS["low rank"], generator=seeded())
    loaded = round_trip(posterior, case, path, draws=0)
    with safe_open(path, framework="pt") as file:
        assert file.get_tensor("x").shape == (2, 2)
    with pytest.raises(ValueError, match=r"given as batches .* not saved in files; fit again"):
        loaded.sample(1)


@each_method
def test_saving_twice_gives_the_same_bytes(method: str, path: Path):
    posterior = fitted(by_name("paper mlp"), method)
    written = []
    for _ in range(2):
        posterior.save(path)
        written.append(path.read_bytes())
    assert written[0] == written[1]
    assert os.listdir(path.parent) == [path.name]


@each_method
def test_saving_and_loading_change_nothing(method: str, path: Path):
    case = by_name("batch norm in eval mode")
    posterior, module = fitted(case, method), case.module()
    before = answers(posterior, case.query)
    with unchanged(module):
        posterior.save(path)
        loaded = ntkgp.load(path, module)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.add_(1)
    path.write_bytes(b"")
    for one in (posterior, loaded):
        assert all(torch.equal(a, b) for a, b in zip(before, answers(one, case.query), strict=True))


def test_mode_and_frozen_weights_do_not_matter(path: Path):
    """What is loaded is in the mode that was fitted, whatever the module is in."""
    case = by_name("batch norm in eval mode")
    posterior, module = fitted(case), case.module().train().requires_grad_(False)
    posterior.save(path)
    assert_same_bits(posterior, ntkgp.load(path, module), case.query)
    assert module.training


def test_what_is_no_module_is_refused(path: Path):
    fitted(by_name("paper mlp")).save(path)
    with pytest.raises(TypeError, match=r"must be the torch.nn.Module that was fitted, got str"):
        ntkgp.load(path, "net")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="no parameters"):
        ntkgp.load(path, nn.Tanh())


def test_prior_means(path: Path):
    case = by_name("function as prior mean")
    fitted(case).save(path)
    for none in (None, ntkgp.network_mean):
        with pytest.raises(ValueError, match="pass it again as prior_mean="):
            ntkgp.load(path, case.module(), prior_mean=none)
    with pytest.raises(ValueError, match="prior_mean is not the function passed to fit"):
        ntkgp.load(path, case.module(), prior_mean=lambda x: 1.001 * x.square().sum(dim=1))
    for name, word in {"paper mlp": "zero", "network as prior mean": "network"}.items():
        fitted(by_name(name)).save(path)
        with pytest.raises(ValueError, match=f"the prior mean is in the file .{word}.; leave prior_mean out"):
            ntkgp.load(path, case.module(), prior_mean=ntkgp.network_mean)


@pytest.mark.parametrize("method", ["low rank", "trained"])
def test_parameters_in_another_order(method: str, path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another version may know factors of other layers, and with them order the weights differently."""
    case = by_name("standard parametrisation")
    posterior = fitted(case, method)
    posterior.save(path)
    found = tangent_module._broken_rules

    def one_more(factors: LayerFactors, *others: Any) -> dict[Layer, str]:
        first = next(layer for layer in factors.layers.values() if layer.weight == "0.weight")
        return found(factors, *others) | {first: "there is no rule for its layer"}

    monkeypatch.setattr(tangent_module, "_broken_rules", one_more)
    loaded = ntkgp.load(path, case.module())
    assert list(loaded.state().facts["prior_std"]) != list(posterior.state().facts["prior_std"])
    for a, b in zip(answers(posterior, case.query, draws=0), answers(loaded, case.query, draws=0), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_an_estimate_of_ones_own_cannot_be_saved(path: Path):
    class Own(CovarianceEstimate):
        head_weights = ntkgp.posterior.TightCovariance.head_weights  # pyright: ignore[reportAssignmentType]
        tail_targets = ntkgp.posterior.TightCovariance.tail_targets  # pyright: ignore[reportAssignmentType]

    posterior = by_name("paper mlp").fit(ntkgp.TrainedNetworks(rank=1, trainer=ntkgp.AcceleratedGD(tol=0.5), covariance=Own()))
    with pytest.raises(ValueError, match="only TightCovariance, DrawnCovariance and PaperCovariance can be saved, got Own"):
        posterior.save(path)
    assert not path.exists()


def test_a_solver_of_ones_own_cannot_be_saved(path: Path):
    class Own(ntkgp.CGLS):
        pass

    with pytest.raises(ValueError, match="only CGLS can be saved as solver, got Own"):
        by_name("paper mlp").fit(ntkgp.LowRank(rank=2, solver=Own())).save(path)


def test_rows_that_came_later_lie_as_they_did(path: Path):
    """With another distance between rows, products round in another way: the bits would not be the same."""
    case = by_name("paper mlp")
    posterior = fitted(case)
    for k in range(3):
        posterior = posterior.update(case.x[:5] + k, case.y[:5])
    posterior.save(path)
    loaded = ntkgp.load(path, case.module())
    before, after = kernel_form(posterior).cholesky, kernel_form(loaded).cholesky
    assert [t.stride() for t in after.rows] == [t.stride() for t in before.rows]
    assert after.room.size == 16
    assert_same_bits(posterior, loaded, case.query)
    assert_same_bits(posterior.update(case.x[:2], case.y[:2]), loaded.update(case.x[:2], case.y[:2]), case.query)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@each_method
def test_from_one_device_to_another(method: str, path: Path):
    case = by_name("two outputs")
    net, x, y, query = case.module().cuda(), case.x.cuda(), case.y.cuda(), case.query.cuda()
    # Draws are solved for again where they are made: to a tolerance that leaves nothing to compare but rounding.
    chosen = ntkgp.LowRank(rank=3, draws=2, solver=ntkgp.CGLS(tol=1e-11)) if method == "low rank" else METHODS[method]
    posterior = ntkgp.fit(net, x, y, noise_var=0.1, method=chosen, generator=seeded())
    posterior.save(path)
    assert_same_bits(posterior, ntkgp.load(path, net), query)
    moved = ntkgp.load(path, case.module())
    for a, b in zip(answers(posterior, query), answers(moved, case.query), strict=True):
        assert b.device.type == "cpu"
        torch.testing.assert_close(a.cpu(), b, rtol=1e-6, atol=1e-9)


def test_noise_given_as_a_tensor_is_copied():
    """What the user does to it later must not reach the posterior."""
    case, noise = by_name("two outputs"), torch.full((1, 2), 0.1, dtype=torch.float64)
    posterior = ntkgp.fit(case.module(), case.x, case.y, noise_var=noise)
    noise.fill_(5.0)
    found = posterior.predict(case.query).noise_var
    assert found is not None
    assert bool((found == 0.1).all())
