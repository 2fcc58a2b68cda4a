"""Linearised Laplace approximations by the laplace-torch package: Daxberger et al., "Laplace Redux", NeurIPS 2021.

A trained network is handed to the package: the GGN of all weights in full (from Jacobians: ``GGNInterface``) or with Kronecker
factors (the package's default), or of the last layer in full; one prior precision and the noise by its marginal likelihood
(Immer et al., "Scalable Marginal Likelihood Estimation", ICML 2021), as the authors recommend; its linearised ("glm")
predictive. Training in float32, the approximation in float64. The three structures share one network of
``methods/training/networks.py``.

``pip install laplace-torch`` and its requirements; ``benchmarks/speed/rivals.py`` lists them.
"""

# The package's types are loose, and it may not be installed. Type checkers would take a file called laplace for it.
# pyright: reportMissingImports=false
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.methods.training.networks import Trained, budget_network
from benchmarks.scores import Forecast
from benchmarks.timing import querying
from benchmarks.uci import Split


def laplace(split: Split, *, seed: int, weights: str, structure: str, network: Callable[..., Trained] = budget_network,
            device: str = "cpu", **options: Any) -> Forecast:  # fmt: skip
    """The approximation of the split's network over these weights, with this structure."""
    from laplace.curvature import GGNInterface

    net, chosen = network(split, seed, device, **options)
    x, y, new = split.x.to(device), split.y.to(device), split.x_test.to(device)
    backend: dict[str, Any] = {"backend": GGNInterface} if structure == "full" else {}
    fitted = approximation(net, x, y.unsqueeze(1), weights, structure, 500, **backend)
    precision, noise = tune(fitted, device)
    with querying(device):
        mean, variance = (part.flatten() for part in predictive(fitted, new, 1000))
    chosen = {**chosen, "prior_precision": precision, "noise": noise}
    return split.forecast(mean, (variance + noise**2).sqrt(), variance.sqrt(), **chosen)


laplace_full = partial(laplace, weights="all", structure="full")
laplace_kron = partial(laplace, weights="all", structure="kron")
laplace_last_layer = partial(laplace, weights="last_layer", structure="full")


def approximation(net: nn.Module, x: Tensor, y: Tensor, weights: str, structure: str, batch: int, **options: Any) -> Any:
    """The package's approximation of a network, fitted to the data."""
    from laplace import Laplace

    fitted: Any = Laplace(net, "regression", weights, structure, **options)
    fitted.fit(DataLoader(TensorDataset(x, y), batch_size=batch))
    return fitted


def predictive(fitted: Any, new: Tensor, at_once: int, kind: str = "glm") -> tuple[Tensor, Tensor]:
    """Mean ``(queries, outputs)`` and variance ``(queries, outputs, outputs)``, so many queries at a time."""
    mean, variance = zip(*(fitted(part, pred_type=kind) for part in new.split(at_once)), strict=True)
    return torch.cat(mean), torch.cat(variance)


def evidence_of(fitted: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """The package's log marginal likelihood of prior precision and noise; a full matrix by its eigenvalues, computed once."""
    if not isinstance(fitted.H, Tensor):
        return fitted.log_marginal_likelihood
    eigenvalues, norm = torch.linalg.eigvalsh(fitted.H).clamp(min=0), fitted.mean.square().sum()

    def evidence(precision: Tensor, noise: Tensor) -> Tensor:
        fitted.sigma_noise = noise
        logdet = torch.log1p(eigenvalues / (noise.square() * precision)).sum()
        return fitted.log_likelihood - 0.5 * (logdet + precision * norm)

    return evidence


def tune(fitted: Any, device: str, start: tuple[float, float] = (0.0, -1.0), steps: int = 300) -> tuple[float, float]:
    """Set prior precision and std of the noise to greatest evidence: Adam in their logarithms, as in the package's examples."""
    evidence = evidence_of(fitted)
    logs = torch.tensor(start, dtype=torch.float64, device=device, requires_grad=True)
    optimiser = torch.optim.Adam([logs], lr=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        (-evidence(logs[0].exp(), logs[1].exp())).backward()
        optimiser.step()
    precision, noise = float(logs[0].exp()), float(logs[1].exp())
    fitted.prior_precision, fitted.sigma_noise = precision, noise
    return precision, noise
