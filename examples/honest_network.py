"""An honest trained network: its predictions stay, and each gets a calibrated standard deviation.

We train a network as usual, on inputs between −2 and 2, and take the tangent at its weights. Prior variances and noise come
from data that it was not trained on, in two ways. From the residuals of the network: they look like noise, so the most likely
prior variance is almost zero, and the band is flat. From the observations themselves: how far must the weights move to
explain a curve like this one? Then the band is wide where there are no data. Both are calibrated where there are data.

Neither way corrects the prediction far from the data: the true curve continues to oscillate, and the network has not seen that.

Run with ``python examples/honest_network.py``, which writes ``honest_network.png``; ``NTKGP_SMALL=1`` makes it a smoke test.
"""

import os
from dataclasses import replace

import torch
from torch import Tensor, nn

import ntkgp
from ntkgp import plots

SMALL = os.environ.get("NTKGP_SMALL") == "1"
POINTS, WIDTH, STEPS, TUNING = (60, 16, 50, 5) if SMALL else (300, 64, 1500, 100)


def truth(x: Tensor) -> Tensor:
    return torch.sin(2 * x) + 0.3 * x


def train(x: Tensor, y: Tensor) -> nn.Module:
    """An ordinary training loop; it does not know this library."""
    network = nn.Sequential(nn.Linear(1, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1))
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(STEPS):
        optimiser.zero_grad()
        (network(x).squeeze(1) - y).square().mean().backward()
        optimiser.step()
    return network


def main() -> None:
    torch.manual_seed(0)
    x = 4 * torch.rand(POINTS, 1) - 2
    y = truth(x[:, 0]) + 0.2 * torch.randn(POINTS)
    (x, held_x, new_x), (y, held_y, new_y) = x.chunk(3), y.chunk(3)
    network = train(x, y)

    ways = {
        "from the residuals": ntkgp.tune(network, held_x, held_y, prior_mean=ntkgp.network_mean, steps=TUNING),
        "from the observations": ntkgp.tune(network, held_x, held_y, input_scales=False, steps=TUNING),
    }
    grid = torch.linspace(-4, 4, 201).unsqueeze(1)
    figure = plots.figure(10, 4)
    axes = figure.subplots(1, 2, sharey=True)
    for ax, (name, tuned) in zip(axes, ways.items(), strict=True):
        posterior = replace(tuned, prior_mean=ntkgp.network_mean).fit(held_x, held_y)
        print(f"{name}, noise of std {tuned.noise_var**0.5:.3f}, 0.2 in truth: {ntkgp.report(posterior, new_x, new_y)}\n")
        p = posterior.predict(grid)
        plots.posterior_1d(
            ax, grid[:, 0], p.mean, p.std, data=(held_x[:, 0], held_y), truth=truth(grid[:, 0]), total_std=p.total_std
        ).set_title(name, fontsize=10)
        ax.set_ylim(-4, 4)
    axes[0].legend(loc="upper center", ncols=3, fontsize=8, frameon=False)
    figure.savefig("honest_network.png", dpi=120)


if __name__ == "__main__":
    main()
