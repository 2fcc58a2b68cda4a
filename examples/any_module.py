"""Any module works: a small convolutional network with layer normalisation and two outputs, on generated pictures.

Each picture has one bright spot, and the network predicts its position (two outputs). All training spots lie in the left half.
The table shows where the posterior is uncertain. The joint covariance shows what marginal variances cannot.

Run with ``python examples/any_module.py``, which writes ``any_module.png``; ``NTKGP_SMALL=1`` makes it a smoke test.
"""

import os

import torch
from torch import Tensor, nn

import ntkgp
from ntkgp import plots

SMALL = os.environ.get("NTKGP_SMALL") == "1"
SIDE, POINTS, CHANNELS = (8, 24, 4) if SMALL else (12, 120, 12)


def pictures(centres: Tensor) -> Tensor:
    """Bright spots at the given (x, y) in [-1, 1]², as (N, 1, SIDE, SIDE)."""
    axis = torch.linspace(-1, 1, SIDE)
    rows = torch.exp(-((axis - centres[:, 1:]) ** 2) / 0.1)
    columns = torch.exp(-((axis - centres[:, :1]) ** 2) / 0.1)
    return (rows.unsqueeze(2) * columns.unsqueeze(1)).unsqueeze(1)


def network() -> nn.Module:
    """An ordinary PyTorch network; it does not know this library."""
    return nn.Sequential(
        nn.Conv2d(1, CHANNELS, 3, padding=1),
        nn.LayerNorm([CHANNELS, SIDE, SIDE]),
        nn.GELU(),
        nn.Conv2d(CHANNELS, CHANNELS, 3, stride=2, padding=1),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(CHANNELS * ((SIDE + 1) // 2) ** 2, 2),
    )


def main() -> None:
    torch.manual_seed(0)
    centres = torch.rand(POINTS, 2) * torch.tensor([0.8, 1.6]) - 0.8  # x in [-0.8, 0], y in [-0.8, 0.8]
    x, y = pictures(centres), centres + 0.05 * torch.randn_like(centres)
    posterior = ntkgp.fit(network(), x, y, noise_var=0.05**2)

    asked = {
        "among the training spots": (-0.4, 0.1),
        "at their edge": (0.0, 0.1),
        "a little to the right": (0.25, 0.1),
        "far to the right": (0.8, 0.1),
    }
    spots = torch.tensor(list(asked.values()))
    queries = torch.cat([pictures(spots), pictures(spots[:1]) + pictures(spots[-1:]), torch.zeros(1, 1, SIDE, SIDE)])
    p = posterior.predict(queries)
    print(f"{'picture':<26}{'truth':>15}{'mean':>17}{'std x':>8}{'std y':>8}")
    truths = [f"({a:5.2f}, {b:5.2f})" for a, b in asked.values()]
    for k, (name, truth) in enumerate(zip([*asked, "two spots", "an empty picture"], [*truths, "none", "none"], strict=True)):
        mean = "({:5.2f}, {:5.2f})".format(*p.mean[k].tolist())
        print(f"{name:<26}{truth:>15}{mean:>17}{p.std[k, 0]:8.3f}{p.std[k, 1]:8.3f}")

    # The order of rows and columns is point-major: x and y of the first point, then x and y of the second.
    covariance = posterior.covariance(pictures(torch.tensor([[0.6, 0.1], [0.8, 0.1]])))
    std = covariance.diagonal().sqrt()
    correlation = covariance[0, 2] / (std[0] * std[2])
    step = torch.tensor([-1.0, 0.0, 1.0, 0.0])
    print(f"\nx at (0.6, 0.1) and (0.8, 0.1): std {std[0]:.3f} and {std[2]:.3f}, correlation {correlation:.2f},")
    print(f"so the std of their difference is smaller: {(step @ covariance @ step).sqrt():.3f}")

    figure, axis = plots.figure(5.5, 4.4), torch.linspace(-1, 1, 25)
    ax, std = figure.subplots(), posterior.predict(pictures(torch.cartesian_prod(axis, axis))).std[:, 0]
    figure.colorbar(ax.contourf(axis, axis, std.reshape(25, 25).T, levels=12, cmap="cividis"), label="std of x")
    ax.plot(centres[:, 0], centres[:, 1], "o", color=plots.DATA, markersize=4, markeredgecolor="white", markeredgewidth=0.6)
    ax.set(xlabel="x of the spot", ylabel="y of the spot")
    figure.savefig("any_module.png", dpi=120)


if __name__ == "__main__":
    main()
