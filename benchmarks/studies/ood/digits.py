"""Digits: five classes are learned as one-hot targets, the images of the other five should be told from new ones of the five.

One architecture and one training for all (two hidden layers of 256, ReLU, 30 epochs of Adam on the squared error), as each
method needs it; the score is the epistemic variance, summed over outputs.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import ntkgp
from benchmarks.methods import laplace_torch
from benchmarks.store import Record
from benchmarks.studies.splits import auroc

Score = Callable[[Tensor, Tensor, Tensor, int], Tensor]
EPOCHS, RATE, BATCH, WIDTH = 30, 1e-3, 32, 256
CHOICES = range(5)  # seeds of the five classes that are learned


def data(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and one-hot targets, new images of the same classes, images of the other classes."""
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    g = torch.Generator().manual_seed(seed)
    x, label = torch.from_numpy(images).float() / 16, torch.from_numpy(digits)
    known = torch.randperm(10, generator=g)[:5].sort().values
    inside = torch.isin(label, known).nonzero()[:, 0]
    inside = inside[torch.randperm(len(inside), generator=g)]
    train, test = inside[: len(inside) * 4 // 5], inside[len(inside) * 4 // 5 :]
    mean = x[train].mean(0)
    y = (label[train].unsqueeze(1) == known).float()
    return x[train] - mean, y - y.mean(0), x[test] - mean, x[~torch.isin(label, known)] - mean


def network(inputs: int, outputs: int, drop: float = 0.0) -> nn.Sequential:
    layers = [nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Dropout(drop), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(drop)]
    return nn.Sequential(*(layer for layer in layers if drop or not isinstance(layer, nn.Dropout)), nn.Linear(WIDTH, outputs))


def trained(x: Tensor, y: Tensor, drop: float = 0.0) -> nn.Module:
    net = network(x.shape[1], y.shape[1], drop).to(x)
    optimiser = torch.optim.Adam(net.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimiser.zero_grad()
            (net(x[rows]) - y[rows]).square().mean().backward()
            optimiser.step()
    return net


@torch.no_grad()
def _mean(net: nn.Module, x: Tensor) -> Tensor:
    return net(x)


def at_initialisation(x: Tensor, y: Tensor, new: Tensor, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    net = ntkgp.mlp(x.shape[1], y.shape[1], width=WIDTH, activation=nn.ReLU(), generator=g).to(x)
    tuned = ntkgp.tune(net, x, y, input_scales=False, points=2000, generator=g)
    return tuned.fit(x, y).predict(new).variance.sum(1)


def post_hoc(x: Tensor, y: Tensor, new: Tensor, seed: int) -> Tensor:
    net = trained(x, y)
    tuned = ntkgp.tune(net, x, y, prior_mean=ntkgp.network_mean, points=2000, generator=torch.Generator().manual_seed(seed))
    return tuned.fit(x, y).predict(new).variance.sum(1)


def deep_ensemble(x: Tensor, y: Tensor, new: Tensor, seed: int) -> Tensor:
    return torch.stack([_mean(trained(x, y), new) for _ in range(5)]).var(0).sum(1)


def mc_dropout(x: Tensor, y: Tensor, new: Tensor, seed: int) -> Tensor:
    net = trained(x, y, drop=0.1).train()
    return torch.stack([_mean(net, new) for _ in range(200)]).var(0).sum(1)


def _laplace(weights: str, structure: str) -> Score:
    def score(x: Tensor, y: Tensor, new: Tensor, seed: int) -> Tensor:
        fitted = laplace_torch.approximation(trained(x, y), x, y, weights, structure, batch=256)
        laplace_torch.tune(fitted, str(x.device), start=(0.0, 0.0), steps=100)
        return laplace_torch.predictive(fitted, new, 200)[1].diagonal(dim1=1, dim2=2).sum(1).detach()

    return score


METHODS: dict[str, Score] = {
    "at_initialisation": at_initialisation,
    "post_hoc": post_hoc,
    "deep_ensemble": deep_ensemble,
    "mc_dropout": mc_dropout,
    "laplace_kron": _laplace("all", "kron"),
    "laplace_last_layer": _laplace("last_layer", "kron"),
}


def run(method: str, seed: int, device: str) -> Record:
    """One method on one choice of classes."""
    x, y, inside, outside = (part.to(device) for part in data(seed))
    torch.manual_seed(seed)
    scores = METHODS[method](x, y, torch.cat([inside, outside]), seed).cpu()
    area = auroc(scores[: len(inside)], scores[len(inside) :])
    return {"inside": len(inside), "outside": len(outside), "auroc": {"epistemic": area}}
