"""Can I trust the posterior? One call compares it with observations that it has not seen: numbers, words and four pictures.

We fit a network twice, with the true noise and with a third of its standard deviation, and evaluate both fits on held-out
points. The second report says what is wrong and what to do. An ordinary training run of the network shows how far it leaves
the tangent on which the posterior is based.

Run with ``python examples/report.py``, which writes the folders ``report`` and ``report_over_confident``; ``NTKGP_SMALL=1``
makes it a smoke test.
"""

import copy
import os

import torch
from torch import Tensor, nn

import ntkgp

SMALL = os.environ.get("NTKGP_SMALL") == "1"
POINTS, WIDTH, STEPS, NOISE = (60, 64, 50, 0.2) if SMALL else (600, 512, 1000, 0.2)


def train(network: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    """Full-batch gradient descent on a copy."""
    network = copy.deepcopy(network)
    largest = float(torch.linalg.eigvalsh(ntkgp.kernel(network, x))[-1])
    optimiser = torch.optim.SGD(network.parameters(), lr=0.5 * len(x) / largest, momentum=0.9)
    for _ in range(STEPS):
        optimiser.zero_grad()
        (network(x).squeeze(1) - y).square().mean().backward()
        optimiser.step()
    return network


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(POINTS, 2, generator=generator) - 2
    y = torch.sin(2 * x[:, 0]) * x[:, 1] + NOISE * torch.randn(POINTS, generator=generator)
    x, y, x_new, y_new = x[: POINTS // 2], y[: POINTS // 2], x[POINTS // 2 :], y[POINTS // 2 :]
    network = ntkgp.mlp(in_features=2, width=WIDTH, generator=generator)

    trained = train(network, x, y)

    for folder, std in {"report": NOISE, "report_over_confident": NOISE / 3}.items():
        posterior = ntkgp.fit(network, x, y, noise_var=std**2, prior_var=0.1)
        report = ntkgp.report(posterior, x_new, y_new, trained=trained)
        report.save(folder)
        print(f"noise of std {std:.2g} assumed, {NOISE:.2g} in truth:\n{report}\n")


if __name__ == "__main__":
    main()
