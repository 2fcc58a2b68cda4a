"""Epinets: Osband et al., "Epistemic Neural Networks", 2021 (NeurIPS 2023).

A base network and an epinet: f(x, z) = μ(x) + (g(φ(x), z) + α p(x))ᵀ z, z ~ N(0, I). φ are the last hidden units of the base
network, through which no gradient flows, g is a small network and p a fixed random one; that z moves f where there are no data
is the uncertainty. Settings of the authors' google-deepmind/neural_testbed (``EpinetConfig``): base network 50-50, z of
dimension 8, g 15-15, p eight networks 5-5, eight draws of z a step. α is their 0.3 or one of 0.1, 1 and 3. For regression they
perturb the targets by σ cᵀz, c a fixed point of the unit sphere for every training point; σ is the root mean square error of
the base network on the batch. Their weight decay is left out: as for all methods here the number of epochs is
chosen on held-out points.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.methods.training.budget import learn
from benchmarks.methods.training.learner import HIDDEN, RELU, Learner, Moments
from benchmarks.methods.training.stack import Stack
from benchmarks.scores import Forecast
from benchmarks.uci import Split

INDEX, LEARNED, FIXED = 8, (15, 15), (5, 5)
SCALES = (0.1, 0.3, 1.0, 3.0)


class Epinet(Learner):
    """A base network and an epinet for each scale of the prior function."""

    def __init__(self, split: Split, scales: Sequence[float]):
        features = split.x.shape[1]
        super().__init__(len(scales), (features, *HIDDEN, 1), RELU)
        self.epinet = Stack(len(scales), (HIDDEN[-1] + INDEX, *LEARNED, INDEX), RELU)
        self.prior = Stack(INDEX, (features, *FIXED, 1), RELU).requires_grad_(False)
        self.alphas = torch.tensor(scales).view(-1, 1, 1)

    def targets(self, y: Tensor) -> Tensor:
        """With the anchors c of the perturbations beside them."""
        anchors = torch.nn.functional.normalize(torch.randn(len(y), INDEX), dim=1)
        return torch.cat([y.unsqueeze(1), anchors], dim=1)

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The mean, the features and α p of a batch of each member: ``(members, batch[, features or index])``."""
        hidden = x.expand(len(self.alphas), -1, -1)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = torch.relu(torch.baddbmm(bias, hidden, weight))
        mean = torch.baddbmm(self.biases[-1], hidden, self.weights[-1])[:, :, 0]
        prior = self.prior(x.reshape(-1, x.shape[-1]))[:, :, 0].T.unflatten(0, (-1, x.shape[-2]))
        return mean, hidden.detach(), self.alphas * prior

    def _moved(self, features: Tensor, prior: Tensor, z: Tensor) -> Tensor:
        """``(members, draws, batch)``: what the index z ``(draws, index)`` adds."""
        members, batch = features.shape[:2]
        at = z.view(1, -1, 1, INDEX).expand(members, -1, batch, -1)
        both = torch.cat([features.unsqueeze(1).expand(-1, len(z), -1, -1), at], dim=3)
        learned = self.epinet(both.flatten(1, 2)).unflatten(1, (len(z), batch))
        return ((learned + prior.unsqueeze(1)) * at).sum(3)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Half the mean squared error over points and eight draws of z."""
        mean, features, prior = self._parts(x)
        z = torch.randn(INDEX, INDEX)
        sigma = (y[..., 0] - mean.detach()).square().mean(1).sqrt().view(-1, 1, 1)
        target = y[..., 0].unsqueeze(1) + sigma * (y[..., 1:] @ z.T).transpose(1, 2)
        return 0.5 * (mean.unsqueeze(1) + self._moved(features, prior, z) - target).square().mean((1, 2)).sum()

    def moments(self, x: Tensor, precise: bool) -> Moments:
        """Mean and variance over draws of z."""
        mean, features, prior = self._parts(x)
        draws = [self._moved(features, prior, torch.randn(20, INDEX)) for _ in range(20 if precise else 2)]
        values = mean.unsqueeze(1) + torch.cat(draws, dim=1)
        return Moments(values.mean(1), values.var(1))


def epinet(split: Split, *, seed: int, **options: Any) -> Forecast:
    """Choose α, noise and epochs, then fit one network with its epinet."""
    return learn(Epinet, SCALES, split, seed=seed, **options)[0]
