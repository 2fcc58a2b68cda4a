"""Linearised Laplace approximations by the laplace-torch package: Daxberger et al., "Laplace Redux", NeurIPS 2021.

One network, two hidden layers of 50 SiLU units, squared loss and a penalty on the weights; a fifth of the training points
chooses the penalty and the number of epochs, then it is trained on all points. After that laplace-torch has the network: the
GGN of all weights in full (from Jacobians: ``GGNInterface``) or with Kronecker factors, or of the last layer in full; a prior
precision and the noise by its marginal likelihood (Immer et al., "Scalable Marginal Likelihood Estimation", ICML 2021); its
linearised ("glm") predictive. float32 for training, float64 for the approximation.

``pip install laplace-torch`` and what it asks for; see ``benchmarks/rivals.py``.
"""

# The package's own types are loose, and it may not be installed.
# pyright: reportMissingImports=false
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.quality.data import Split
from benchmarks.quality.scores import Forecast
from benchmarks.quality.search import BATCH, search
from benchmarks.quality.stacked import Stack, squared_loss, train
from benchmarks.quality.timing import shared

WIDTH = 50


def laplace_full(split: Split, *, seed: int, device: str = "cpu", steps: int = 20_000) -> Forecast:
    """All weights, the full matrix."""
    return _laplace(split, "all", "full", seed, device, steps)


def laplace_kron(split: Split, *, seed: int, device: str = "cpu", steps: int = 20_000) -> Forecast:
    """All weights, Kronecker factors for each layer (the package's default structure)."""
    return _laplace(split, "all", "kron", seed, device, steps)


def laplace_last_layer(split: Split, *, seed: int, device: str = "cpu", steps: int = 20_000) -> Forecast:
    """The last layer's weights, the full matrix."""
    return _laplace(split, "last_layer", "full", seed, device, steps)


def _laplace(split: Split, weights: str, structure: str, seed: int, device: str, steps: int) -> Forecast:
    from laplace import Laplace
    from laplace.curvature import GGNInterface

    key = ("laplace", split.name, split.kind, split.index, len(split.x), seed, device, steps)
    net, chosen = shared(key, lambda: network(split, seed, device, steps), device)
    x, y, new = split.x.to(device), split.y.to(device), split.x_test.to(device)
    backend: dict[str, Any] = {"backend": GGNInterface} if structure == "full" else {}
    laplace: Any = Laplace(net, "regression", weights, structure, **backend)
    laplace.fit(DataLoader(TensorDataset(x, y.unsqueeze(1)), batch_size=500))
    precision, noise = tune(evidence_of(laplace), device)
    laplace.prior_precision, laplace.sigma_noise = precision, noise
    parts = [laplace(part, pred_type="glm") for part in new.split(1000)]
    mean = torch.cat([part[0].flatten() for part in parts])
    variance = torch.cat([part[1].flatten() for part in parts])
    return split.forecast(mean, (variance + noise**2).sqrt(), variance.sqrt(), prior_precision=precision, noise=noise, **chosen)


def network(split: Split, seed: int, device: str, steps: int) -> tuple[nn.Sequential, dict[str, Any]]:
    """A trained network in float64, and how it was trained."""
    torch.manual_seed(seed)

    def quality(stack: Stack, inner: Split) -> Tensor:
        with torch.no_grad():
            out = stack(inner.x_test.to(stack.weights[0]))[:, :, 0]
        return (out - ((inner.y_test - inner.center) / inner.scale).to(out)).square().mean(1)

    penalty, epochs = search(split.validation(seed), _stack, squared_loss, quality, members=1, rate=3e-3, steps=steps,
                             device=device)  # fmt: skip
    stack = _stack(split, 1, device)
    x, y = split.x.to(device, torch.float32), split.y.to(device, torch.float32)
    train(stack, squared_loss(torch.tensor([penalty], device=device)), x, y, epochs=epochs, batch=BATCH, rate=3e-3)
    layers: list[nn.Module] = []
    for weight, bias in zip(stack.weights, stack.biases, strict=True):
        layer = nn.Linear(weight.shape[1], weight.shape[2], dtype=torch.float64, device=device)
        with torch.no_grad():
            layer.weight.copy_(weight[0].T)
            layer.bias.copy_(bias[0, 0])
        layers += [layer, nn.SiLU()]
    return nn.Sequential(*layers[:-1]), {"penalty": penalty, "epochs": epochs, "learning_rate": 3e-3}


def evidence_of(laplace: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """The package's log marginal likelihood of prior precision and noise; a full matrix by its eigenvalues, found once."""
    if not isinstance(laplace.H, Tensor):
        return laplace.log_marginal_likelihood
    eigenvalues, norm = torch.linalg.eigvalsh(laplace.H).clamp(min=0), laplace.mean.square().sum()

    def evidence(precision: Tensor, noise: Tensor) -> Tensor:
        laplace.sigma_noise = noise
        logdet = torch.log1p(eigenvalues / (noise.square() * precision)).sum()
        return laplace.log_likelihood - 0.5 * (logdet + precision * norm)

    return evidence


def tune(evidence: Callable[[Tensor, Tensor], Tensor], device: str, steps: int = 300) -> tuple[float, float]:
    """Prior precision and std of the noise of greatest evidence, by Adam in their logarithms as in the package's examples."""
    logs = torch.tensor([0.0, -1.0], dtype=torch.float64, device=device, requires_grad=True)
    optimiser = torch.optim.Adam([logs], lr=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        (-evidence(logs[0].exp(), logs[1].exp())).backward()
        optimiser.step()
    return float(logs[0].exp()), float(logs[1].exp())


def _stack(split: Split, members: int, device: str) -> Stack:
    return Stack(members, (split.x.shape[1], WIDTH, WIDTH, 1), nn.functional.silu).to(device)
