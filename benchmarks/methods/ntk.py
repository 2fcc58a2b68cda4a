"""Posteriors of the tangent kernel of the same small network: by real networks, and exactly.

The Bayesian deep ensemble of He, Lakshminarayanan & Teh, "Bayesian Deep Ensembles via the Neural Tangent Kernel", NeurIPS 2020:
each member learns its own draw of prior and noise and is a draw from the NTK-GP posterior (``posterior.sample_networks``).
Twenty members. The authors draw new initial weights for every member and add the part of the prior that those lack; here all
members start from one network and the whole prior is drawn, which has the same limit. Beside it what the paper of this library
does with the same network (K = 100 singular vectors, T = 12 random targets), and the exact posterior that both stand for.

All three have two hidden layers of 50 ReLU units in NTK parametrisation at their initial weights, with noise, layers and input
scales by marginal likelihood on at most 1000 points: no fit. Networks are trained by accelerated gradient descent on all
points.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

import ntkgp
from benchmarks.methods.training.learner import HIDDEN
from benchmarks.scores import Forecast
from benchmarks.timing import querying, shared
from benchmarks.uci import Split
from ntkgp.posterior.trained.samples import draw_networks
from ntkgp.problem.build import build_problem
from ntkgp.problem.source import Source

MEMBERS, RANK, TAIL = 20, 100, 12  # of the ensemble's head, too: it tells gradient descent the shape of its loss
SVD = ntkgp.linalg.Lanczos(tol=1e-2)
TRAINER = ntkgp.AcceleratedGD(tol=0.02, max_steps=500)


class Kernel(NamedTuple):
    """A network and the hyper-parameters its posterior is taken with."""

    module: nn.Module
    noise_var: float
    prior_var: float | Mapping[str, float] = 1.0

    def fit(self, split: Split, **options: Any) -> ntkgp.posterior.Posterior:
        """The posterior on the training points."""
        known = {"noise_var": self.noise_var, "prior_var": self.prior_var}
        return ntkgp.fit(self.module, split.x, split.y, **known, **options)


def tuned(split: Split, seed: int) -> Kernel:
    """The network with what its marginal likelihood chose; found once in a process, the time counted for each that asks."""

    def make() -> Kernel:
        generator = torch.Generator().manual_seed(seed)
        network = ntkgp.mlp(split.x.shape[1], width=HIDDEN[0], depth=len(HIDDEN), activation=nn.ReLU(), generator=generator)
        found = ntkgp.tune(network.to(split.x), split.x, split.y, points=1000, hyper_prior=1.0, generator=generator)
        return Kernel(found.module, float(found.noise_var), found.prior_var)

    return shared(("ntk", *split.key, seed), make, "cpu")


def _answer(split: Split, known: Kernel, mean: torch.Tensor, std: torch.Tensor, networks: int, **more: Any) -> Forecast:
    settings = {"noise": known.noise_var**0.5, "tuning_fits": 0, "fits": int(networks > 0), "networks": networks, **more}
    return split.forecast(mean, (std.square() + known.noise_var).sqrt(), std, **settings)


def ntk_exact(split: Split, *, seed: int, device: str = "cpu", known: Kernel | None = None) -> Forecast:
    """The exact posterior; no network is trained."""
    known = known or tuned(split, seed)
    posterior = known.fit(split)
    with querying(device):
        p = posterior.predict(split.x_test)
    return _answer(split, known, p.mean, p.std, 0)


def ntk_ensemble(split: Split, *, seed: int, device: str = "cpu", known: Kernel | None = None,
                 trainer: ntkgp.AcceleratedGD = TRAINER, members: int = MEMBERS) -> Forecast:  # fmt: skip
    """The Bayesian deep ensemble: mean and std over members."""
    known, generator = known or tuned(split, seed), torch.Generator().manual_seed(seed)
    problem = build_problem(
        known.module, Source(split.x, split.y, known.noise_var), prior_var=known.prior_var, dtype=split.x.dtype
    )
    head = SVD(problem.operators.whitened, min(RANK, *problem.operators.shape), generator)
    functions = draw_networks(problem, head, trainer, members, generator)
    with querying(device):
        values = functions(split.x_test).double()
    trained: Any = functions.networks
    reached = {"steps": max(trained.trained.steps), "accuracy": max(trained.trained.accuracy)}
    return _answer(split, known, values.mean(0), values.std(0), members, **reached)


def ntk_trained(split: Split, *, seed: int, device: str = "cpu", known: Kernel | None = None,
                trainer: ntkgp.AcceleratedGD = TRAINER, rank: int = RANK, tail: int = TAIL) -> Forecast:  # fmt: skip
    """The paper's system: 1 + K + T networks."""
    known, generator = known or tuned(split, seed), torch.Generator().manual_seed(seed)
    method = ntkgp.TrainedNetworks(rank=min(rank, len(split.x)), tail=tail, svd=SVD, trainer=trainer)
    posterior = known.fit(split, method=method, generator=generator)
    with querying(device):
        p = posterior.predict(split.x_test)
    return _answer(split, known, p.mean, p.std, 1 + method.rank + tail)
