"""Data in batches gives the same posterior as data in tensors."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import ntkgp
from ntkgp.posterior.lowrank import method as lowrank
from ntkgp.posterior.lowrank.posterior import LowRankPosterior
from ntkgp.tangent import tangent as tangent_module
from tests.support.cases import by_name
from tests.support.helpers import TIGHT
from tests.support.lowrank import fitted


@pytest.mark.parametrize("kept", [True, False], ids=["factors kept", "factors computed anew"])
def test_batches_give_the_same_posterior(kept: bool, monkeypatch: pytest.MonkeyPatch):
    case = by_name("two outputs")
    if not kept:
        monkeypatch.setattr(tangent_module, "free_bytes", lambda device: 0)
    monkeypatch.setattr(lowrank, "choose_side", lambda problem, columns, solved: "weights")
    whole = fitted(case, ntkgp.LowRank(rank=6, draws=3, solver=TIGHT))
    loader = DataLoader(TensorDataset(case.x, case.y), batch_size=5)
    options = {"noise_var": case.noise_var, "method": ntkgp.LowRank(rank=6, draws=3, solver=TIGHT)}
    parts = ntkgp.fit(case.module(), loader, generator=torch.Generator().manual_seed(0), **options)
    assert isinstance(parts, LowRankPosterior)
    one, other = whole.predict(case.query), parts.predict(case.query)
    torch.testing.assert_close(one.mean, other.mean, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(one.variance, other.variance, rtol=1e-4, atol=1e-9)
    assert parts.problem.data.batches is not None
    assert (parts.problem.data.batches.passes == 3) == kept  # looking, checking, and one pass for all factors


@pytest.mark.parametrize("method", [ntkgp.Exact(), ntkgp.TrainedNetworks(rank=2)], ids=["exact", "trained"])
def test_batches_for_methods_that_need_all_points(method: ntkgp.Exact | ntkgp.TrainedNetworks):
    case = by_name("paper mlp")
    batches = list(zip(case.x.split(5), case.y.split(5), strict=True))
    whole, parts = case.fit(method), ntkgp.fit(case.module(), batches, noise_var=case.noise_var, method=method)
    torch.testing.assert_close(whole.predict(case.query).variance, parts.predict(case.query).variance)


def test_batches_that_cannot_be_used():
    case = by_name("paper mlp")
    pairs = list(zip(case.x.split(5), case.y.split(5), strict=True))
    with pytest.raises(TypeError, match="used up after one pass"):
        ntkgp.fit(case.module(), iter(pairs), noise_var=0.1)

    class Singles:
        def __iter__(self):
            return iter(case.x.split(5))

    with pytest.raises(TypeError, match="each batch must be a pair"):
        ntkgp.fit(case.module(), Singles(), noise_var=0.1)  # pyright: ignore[reportArgumentType]

    class Shrinking:
        passes = 0

        def __iter__(self):
            self.passes += 1
            return iter(pairs if self.passes <= 3 else pairs[:1])

    with pytest.raises(ValueError, match="every pass must give the same batches"):
        ntkgp.fit(case.module(), Shrinking(), noise_var=0.1, method=ntkgp.LowRank(rank=2))


@pytest.mark.parametrize("method", [None, ntkgp.Exact()])
def test_a_method_that_needs_all_data_at_once_does_not_mind_their_order(method: ntkgp.Exact | None):
    x, net = torch.linspace(-1, 1, 12).unsqueeze(1), ntkgp.mlp(1, width=16, generator=torch.Generator().manual_seed(0))
    y = x[:, 0].sin()
    shuffled = DataLoader(TensorDataset(x, y), 4, shuffle=True, generator=torch.Generator().manual_seed(0))
    found = ntkgp.fit(net, shuffled, noise_var=0.1, method=method).predict(x)
    expected = ntkgp.fit(net, x, y, noise_var=0.1, method=ntkgp.Exact("kernel")).predict(x)
    assert torch.allclose(found.mean, expected.mean, atol=1e-6)
    assert torch.allclose(found.variance, expected.variance, rtol=1e-5)
