"""Linearised Laplace approximations by laplace-torch: Daxberger et al., "Laplace Redux", NeurIPS 2021.

An ordinary network whose penalty and epochs are chosen by the likelihood of held-out points, with one noise for all; then the
package has it: the GGN of all weights in full, with Kronecker factors (its default), or of the last layer in full; one prior
precision and the noise by its marginal likelihood (Immer et al., ICML 2021), as the authors recommend; its linearised ("glm")
predictive. Training in float32, the approximation in float64. The three have the same network.
"""

# The package is loosely typed and may not be installed; a file called laplace would be taken for it by type checkers.
# pyright: reportMissingImports=false
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.alternatives.protocol import HIDDEN, Learner, Moments, learn
from benchmarks.quality.data import Split
from benchmarks.quality.laplace_torch import evidence_of, tune
from benchmarks.quality.scores import Forecast
from benchmarks.quality.search import PENALTIES
from benchmarks.quality.stacked import squared_loss
from benchmarks.quality.timing import querying, shared


class Ordinary(Learner):
    """A network for each penalty, with no uncertainty of its own."""

    def __init__(self, split: Split, penalties: Sequence[float]):
        super().__init__(len(penalties), (split.x.shape[1], *HIDDEN, 1), torch.relu)
        self.squared = squared_loss(torch.tensor(penalties))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Half the mean squared error, and the penalty."""
        return self.squared(self, x, y)

    def moments(self, x: Tensor, precise: bool) -> Moments:
        """Means alone."""
        mean = self(x)[:, :, 0]
        return Moments(mean, torch.zeros_like(mean))

    def module(self) -> nn.Sequential:
        """The first network as an ordinary module, float64."""
        layers: list[nn.Module] = []
        for weight, bias in zip(self.weights, self.biases, strict=True):
            layer = nn.Linear(weight.shape[1], weight.shape[2], dtype=torch.float64)
            with torch.no_grad():
                layer.weight.copy_(weight[0].T)
                layer.bias.copy_(bias[0, 0])
            layers += [layer, nn.ReLU()]
        return nn.Sequential(*layers[:-1])


def ordinary(split: Split, seed: int, **options: Any) -> tuple[nn.Sequential, dict[str, Any]]:
    """The network of a split, and how it was chosen; trained once in a process, its time counted for each that asks."""
    key = ("ordinary", split.name, split.kind, split.index, tuple(split.x.shape), seed, *options.items())

    def make() -> tuple[nn.Sequential, dict[str, Any]]:
        forecast, learner = learn(Ordinary, PENALTIES, split, seed=seed, **options)
        assert isinstance(learner, Ordinary)
        return learner.module(), forecast.chosen

    return shared(key, make, "cpu")


def laplace(split: Split, *, seed: int, weights: str, structure: str, **options: Any) -> Forecast:
    """The approximation of the split's network over these weights, with this structure."""
    from laplace import Laplace
    from laplace.curvature import GGNInterface

    net, chosen = ordinary(split, seed, **options)
    backend: dict[str, Any] = {"backend": GGNInterface} if structure == "full" else {}
    fitted: Any = Laplace(net, "regression", weights, structure, **backend)
    fitted.fit(DataLoader(TensorDataset(split.x, split.y.unsqueeze(1)), batch_size=500))
    precision, noise = tune(evidence_of(fitted), "cpu")
    fitted.prior_precision, fitted.sigma_noise = precision, noise
    with querying("cpu"):
        parts = [fitted(part, pred_type="glm") for part in split.x_test.split(1000)]
    mean, variance = (torch.cat([part[k].flatten() for part in parts]) for k in (0, 1))
    chosen = {**chosen, "prior_precision": precision, "noise": noise}
    return split.forecast(mean, (variance + noise**2).sqrt(), variance.sqrt(), **chosen)


laplace_full = partial(laplace, weights="all", structure="full")
laplace_kron = partial(laplace, weights="all", structure="kron")
laplace_last_layer = partial(laplace, weights="last_layer", structure="full")
