"""Noise per observation: two instruments measure the same curve, and the precise one gets more weight.

The coarse instrument measures everywhere, the fine one only on the right. With the variance of each observation, the posterior
gives more weight to the fine ones; with one common variance, it treats all observations alike. Held-out observations of both
instruments show which of the two fits is better.

Run with ``python examples/heteroscedastic.py``, which writes ``heteroscedastic.png``; ``NTKGP_SMALL=1`` makes it a smoke test.
"""

import os

import torch
from torch import Tensor

import ntkgp
from ntkgp import plots

SMALL = os.environ.get("NTKGP_SMALL") == "1"
POINTS, WIDTH = (40, 64) if SMALL else (200, 512)
COARSE, FINE = 0.6, 0.05  # standard deviations


def truth(x: Tensor) -> Tensor:
    return torch.sin(2 * x) + 0.5 * x


def observed(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, observations and the variance of each."""
    x = 6 * torch.rand(POINTS, generator=generator) - 3
    fine = (x > 0) & (torch.rand(POINTS, generator=generator) < 0.4)
    std = torch.where(fine, FINE, COARSE)
    return x.unsqueeze(1), truth(x) + std * torch.randn(POINTS, generator=generator), std.square()


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    (x, y, var), (new_x, new_y, new_var) = observed(generator), observed(generator)
    network = ntkgp.mlp(1, width=WIDTH, activation=torch.nn.SiLU(), generator=generator)
    grid = torch.linspace(-3.5, 3.5, 201).unsqueeze(1)

    figure = plots.figure(10, 4)
    axes = figure.subplots(1, 2, sharey=True)
    noises = {"a variance for each": (var, new_var), "one for all": (float(var.mean()), None)}
    for ax, (name, (noise, new_noise)) in zip(axes, noises.items(), strict=True):
        posterior = ntkgp.fit(network, x, y, noise_var=noise)
        p = posterior.predict(grid)
        held = posterior.predict(new_x, noise_var=new_noise)
        scores = ntkgp.diagnostics.evaluate(held, new_y)
        error = (held.mean - truth(new_x[:, 0])).square().mean().sqrt()
        print(f"{name:<20} nll {scores.nll:6.3f}, 95 % intervals hold {scores.coverage(0.95):.1%}, mean off by {error:.3f}")
        plots.posterior_1d(ax, grid[:, 0], p.mean, p.std, truth=truth(grid[:, 0]))
        for which, color, label in ((var > 0.1, plots.TRUTH, "coarse"), (var < 0.1, plots.DATA, "fine")):
            ax.plot(x[which], y[which], "o", color=color, markersize=3.5, markeredgecolor="white", alpha=0.8, label=label)
        ax.set_title(name, fontsize=10)
    axes[0].legend(fontsize=8, frameon=False, ncols=2)
    figure.savefig("heteroscedastic.png", dpi=120)


if __name__ == "__main__":
    main()
