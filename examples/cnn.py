"""A convolutional network that knows what it has not seen: it reads a dial, but one part of the dial is not in the data.

Each picture shows a dial whose hand points to an angle, and the network predicts a quantity that is a function of the angle.
The training pictures have no hands between 120° and 200°. The plot shows the posterior over the angle, although the network
sees only pixels: the band is narrow at the training angles and wide in the gap. Nothing of the size of the Jacobian is
stored.

Run with ``python examples/cnn.py``, which writes ``cnn.png``; ``NTKGP_SMALL=1`` makes it a smoke test.
"""

import os

import torch
from torch import Tensor, nn

import ntkgp
from ntkgp import plots

SMALL = os.environ.get("NTKGP_SMALL") == "1"
POINTS, CHANNELS, RANK, STEPS = (40, 4, 16, 5) if SMALL else (300, 16, 128, 60)
SIDE, GAP = 16, (120.0, 200.0)


def dials(degrees: Tensor) -> Tensor:
    """Pictures (N, 1, SIDE, SIDE) of hands that start in the middle."""
    angle = torch.deg2rad(degrees)[:, None, None]
    axis = torch.linspace(-1, 1, SIDE)
    along = axis * torch.cos(angle) + axis[:, None] * torch.sin(angle)
    across = axis * torch.sin(angle) - axis[:, None] * torch.cos(angle)
    return (torch.exp(-20 * across.square()) * torch.sigmoid(10 * along) * torch.sigmoid(15 * (0.9 - along))).unsqueeze(1)


def truth(degrees: Tensor) -> Tensor:
    return torch.sin(2 * torch.deg2rad(degrees)) + 0.5 * torch.cos(torch.deg2rad(degrees))


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, CHANNELS, 5, stride=2, padding=2), nn.SiLU(),
        nn.Conv2d(CHANNELS, CHANNELS, 3, stride=2, padding=1), nn.SiLU(),
        nn.Flatten(), nn.Linear(CHANNELS * 16, 1),
    )  # fmt: skip


def main() -> None:
    torch.manual_seed(0)
    degrees = (GAP[1] + (360 - GAP[1] + GAP[0]) * torch.rand(POINTS)) % 360
    x, y = dials(degrees), truth(degrees) + 0.1 * torch.randn(POINTS)

    tuned = ntkgp.tune(network(), x, y, steps=STEPS)
    posterior = tuned.fit(x, y, method=ntkgp.LowRank(rank=RANK, draws=8))

    grid = torch.linspace(0, 360, 181)
    p = posterior.predict(dials(grid))
    inside = (grid > GAP[0]) & (grid < GAP[1])
    for name, where in {"seen": ~inside, "not seen": inside}.items():
        error, std = (p.mean - truth(grid))[where].square().mean().sqrt(), p.std[where].square().mean().sqrt()
        print(f"angles {name:<9} error {error:.3f}, std {std:.3f}, {int(where.sum())} pictures")

    figure = plots.figure(9, 4.6)
    shown = figure.subplot_mosaic([["band"] * 9, [str(k) for k in range(9)]], height_ratios=[4, 1])
    plots.posterior_1d(shown["band"], grid, p.mean, p.std, data=(degrees, y), truth=truth(grid), bracket=(p.lower, p.upper))
    shown["band"].set_xlabel("degrees")
    shown["band"].legend(ncols=7, fontsize=8, frameon=False, loc="upper center")
    for k, angle in enumerate(torch.linspace(0, 360, 9)):
        shown[str(k)].imshow(dials(angle[None])[0, 0], cmap="cividis", origin="lower")
        shown[str(k)].set(xticks=[], yticks=[], xlabel=f"{angle:.0f}°")
    figure.savefig("cnn.png", dpi=120)


if __name__ == "__main__":
    main()
