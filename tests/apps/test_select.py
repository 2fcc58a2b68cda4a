"""The points chosen are those that a refit for every candidate would choose."""

import pytest
import torch
from torch import Tensor

import ntkgp
from ntkgp.posterior.exact.posterior import ExactPosterior
from tests.support.helpers import seeded
from tests.support.typechecker import repeated


def points(count: int, seed: int) -> Tensor:
    return torch.rand(count, 2, generator=seeded(seed), dtype=torch.float64) * 4 - 2


def problem(outputs: int, noise: str) -> tuple[torch.nn.Module, Tensor, Tensor, float | Tensor]:
    x = points(7, 0)
    y = torch.stack([torch.sin(x[:, 0] + c) for c in range(outputs)], dim=1)
    chosen = {"one": 0.05, "per output": torch.tensor([[0.01, 0.3, 1.0][:outputs]]).double()}[noise]
    return ntkgp.mlp(2, outputs, width=16, generator=seeded(1)).double(), x, y, chosen


def refits(posterior: ntkgp.posterior.Posterior, candidates: Tensor, targets: Tensor, noise: float | Tensor) -> Tensor:
    """The variance left over the targets after each candidate, whatever is observed there: all refitted from scratch."""
    assert isinstance(posterior, ExactPosterior)
    p = posterior.problem
    y = p.data.residual.view(-1, p.outputs)
    old = p.data.noise_std.square().view(-1, p.outputs)
    left = []
    for k in repeated(range(len(candidates))):
        if isinstance(noise, Tensor):
            mine = noise[k : k + 1].reshape(1, -1).expand(1, p.outputs) if len(noise) == len(candidates) else noise
        else:
            mine = torch.full((1, p.outputs), noise, dtype=torch.float64)
        all_x, all_y = torch.cat([p.data.x, candidates[k : k + 1]]), torch.cat([y, torch.full_like(y[:1], 3.0)])
        fresh = ntkgp.fit(p.network.module.requires_grad_(True), all_x, all_y, noise_var=torch.cat([old, mine]))
        p.network.module.requires_grad_(False)
        left.append(fresh.predict(targets).variance.sum())
    return torch.stack(left)


@pytest.mark.parametrize(("outputs", "noise"), [(1, "one"), (3, "one"), (3, "per output")])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_each_choice_is_that_of_a_refit_for_every_candidate(outputs: int, noise: str, elsewhere: bool):
    net, x, y, noise_var = problem(outputs, noise)
    posterior = ntkgp.fit(net, x, y, noise_var=noise_var)
    candidates = points(12, 2)
    targets = points(9, 3) * 0.5 + 1 if elsewhere else candidates
    chosen = ntkgp.select(posterior, candidates, 3, targets=targets if elsewhere else None)
    now = posterior
    for step in range(3):
        left = refits(now, candidates, targets, noise_var)
        free = [k for k in range(12) if k not in chosen[:step].tolist()]
        assert int(chosen[step]) == free[int(left[free].argmin())]
        k = int(chosen[step])
        now = now.update(candidates[k : k + 1], torch.full((1, outputs), -1.0).double())


def test_noise_of_the_candidates_counts():
    """The best candidate is passed over when it is noisy; without a noise it cannot be judged."""
    net, x, y, _ = problem(1, "one")
    posterior = ntkgp.fit(net, x, y, noise_var=torch.linspace(0.01, 0.1, 7).double())
    candidates = points(10, 4)
    best = int(ntkgp.select(posterior, candidates, noise_var=0.01))
    noise = torch.full((10,), 0.01).double()
    noise[best] = 1e4
    second = int(ntkgp.select(posterior, candidates, noise_var=noise))
    assert second != best
    assert second == int(refits(posterior, candidates, candidates, noise).argmin())
    with pytest.raises(ValueError, match=r"noise_var is missing.*\(10,\)"):
        ntkgp.select(posterior, candidates)


@pytest.mark.parametrize(
    "method", [ntkgp.LowRank(rank=14), ntkgp.TrainedNetworks(rank=14, trainer=ntkgp.AcceleratedGD(tol=1e-4))]
)
def test_all_kinds_of_posteriors(method: ntkgp.LowRank | ntkgp.TrainedNetworks):
    net, x, y, noise_var = problem(2, "one")
    candidates = points(15, 5)
    exact, other = (ntkgp.fit(net, x, y, noise_var=noise_var, method=m, generator=seeded()) for m in (ntkgp.Exact(), method))
    assert torch.equal(ntkgp.select(exact, candidates, 4), ntkgp.select(other, candidates, 4))


def test_a_batch_spreads():
    """Two candidates at the same place tell the same: the second is not next, however uncertain its place was."""
    net, x, y, _ = problem(1, "one")
    posterior = ntkgp.fit(net, x, y, noise_var=1e-4)
    far = torch.tensor([[3.0, 3.0], [3.0, 3.0], [-3.0, -3.0]]).double()
    assert set(ntkgp.select(posterior, far, 2).tolist()) in ({0, 2}, {1, 2})
    assert sorted(ntkgp.select(posterior, far, 3).tolist()) == [0, 1, 2]


@pytest.mark.parametrize("count", [0, 4])
def test_counts_that_cannot_be(count: int):
    net, x, y, _ = problem(1, "one")
    posterior = ntkgp.fit(net, x, y, noise_var=0.1)
    with pytest.raises(ValueError, match="count must be at"):
        ntkgp.select(posterior, x[:3], count)
