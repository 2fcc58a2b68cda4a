"""Mean-field variational Bayesian networks, through Pyro: Blundell et al., "Weight Uncertainty in Neural Networks", ICML 2015.

A normal prior on every weight, a normal posterior of its own for each, the evidence lower bound on minibatches with the KL term
in closed form (``TraceMeanField_ELBO``); the std of the noise is learned with it. Not weights but what they make of each point
is drawn while training (local reparametrisation: Kingma, Salimans & Welling, NeurIPS 2015), as Foong et al. (2019) and the
repository cambridge-mlg/DUN, whose figures are published, do. Prior stds are s/√fan-in for weights and s for biases, s chosen
among 0.3, 1, 3 and 10; posteriors start narrow around random weights, since from the prior's own width this many steps would
not do.

``pip install pyro-ppl``.
"""

# pyright: reportMissingImports=false
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.methods.training.budget import learn
from benchmarks.methods.training.learner import HIDDEN, RELU, Learner, Moments
from benchmarks.scores import Forecast
from benchmarks.uci import Split

PRIORS = (0.3, 1.0, 3.0, 10.0)
START = 0.02  # std of the posteriors at first


class MeanField(Learner):
    """A variational posterior for each width of the prior; a layer is a matrix, biases in its last row, all layers in a row."""

    def __init__(self, split: Split, priors: Sequence[float]):
        widths = (split.x.shape[1], *HIDDEN, 1)
        super().__init__(len(priors), widths, RELU)
        from pyro.infer import TraceMeanField_ELBO

        layers = [torch.cat([w, b], dim=1).detach() for w, b in zip(self.weights, self.biases, strict=True)]
        self.requires_grad_(False)  # the stack gave the first weights and the number of members
        self.shapes, self.points = [layer.shape[1:] for layer in layers], len(split.x)
        self.loc = nn.Parameter(torch.cat([layer.flatten(1) for layer in layers], dim=1).unsqueeze(1))  # (members, 1, weights)
        self.log_scale = nn.Parameter(torch.full_like(self.loc, START).log())
        self.log_noise = nn.Parameter(torch.full((len(priors), 1), -1.0))
        rows = [torch.cat([torch.full((a, b), a**-0.5), torch.ones(1, b)]).flatten() for a, b in itertools.pairwise(widths)]
        self.prior = torch.tensor(priors).view(-1, 1, 1) * torch.cat(rows)
        self.bound = TraceMeanField_ELBO()

    def _model(self, x: Tensor, y: Tensor) -> None:
        import pyro
        from pyro.distributions import Normal

        with pyro.plate("candidates", len(x), dim=-2):
            pyro.sample("weights", Normal(0.0, self.prior).to_event(1))  # for the KL term, which needs no draw
            with pyro.plate("points", self.points, subsample=torch.arange(x.shape[1]), dim=-1):
                pyro.sample("y", Normal(self._local(x), self.log_noise.exp()), obs=y)

    def _guide(self, x: Tensor, y: Tensor) -> None:
        import pyro
        from pyro.distributions import Normal

        with pyro.plate("candidates", len(x), dim=-2):
            pyro.sample("weights", Normal(self.loc, self.log_scale.exp()).to_event(1))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Minus the lower bound, a point."""
        import pyro

        with pyro.validation_enabled(False):  # it takes as long as the rest
            return self.bound.differentiable_loss(self._model, self._guide, x, y) / self.points

    def moments(self, x: Tensor, precise: bool) -> Moments:
        """Mean and variance over draws of the weights."""
        draws = []
        for _ in range(20 if precise else 4):
            weights = self.loc + self.log_scale.exp() * torch.randn(len(self.loc), 10, self.loc.shape[2])
            draws.append(self._network(weights.flatten(0, 1), x.expand(10 * len(self.loc), -1, -1)).unflatten(0, (-1, 10)))
        values = torch.cat(draws, dim=1)
        return Moments(values.mean(1), values.var(1), (2 * self.log_noise).exp().expand(-1, len(x)))

    def _layers(self, weights: Tensor) -> list[Tensor]:
        """The matrices of each member's row of weights."""
        parts = weights.split([shape.numel() for shape in self.shapes], dim=1)
        return [part.unflatten(1, shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def _local(self, x: Tensor) -> Tensor:
        """``(members, batch)``: outputs with weights drawn for every point by itself, through what each layer makes of it."""
        stds = self._layers(self.log_scale[:, 0].exp())
        for k, (loc, std) in enumerate(zip(self._layers(self.loc[:, 0]), stds, strict=True)):
            x, variance = torch.relu(x) if k else x, std.square()
            spread = torch.baddbmm(variance[:, -1:], x.square(), variance[:, :-1]).sqrt()
            x = torch.baddbmm(loc[:, -1:], x, loc[:, :-1]) + spread * torch.randn_like(spread)
        return x[..., 0]

    def _network(self, weights: Tensor, x: Tensor) -> Tensor:
        """``(members, batch)``: the layers of each member's row of weights applied in turn."""
        for k, layer in enumerate(self._layers(weights)):
            x = torch.baddbmm(layer[:, -1:], torch.relu(x) if k else x, layer[:, :-1])
        return x[..., 0]


def mean_field(split: Split, *, seed: int, **options: Any) -> Forecast:
    """Choose width of the prior and epochs, then fit one posterior."""
    return learn(MeanField, PRIORS, split, seed=seed, **options)[0]
