"""Extrapolation: a trend and a season, generated to resemble the carbon dioxide curve of Mauna Loa.

The data are forty years of months; the last ten years are hidden. The kernel of a sum of networks is the sum of their
kernels, so each network can model one part. The first sees only the year, and its functions grow smoothly. The second sees
the month as a point on a circle (``TrigonometricInputs`` over half a year, so that a full turn is a year), and its functions
repeat. Marginal likelihood weights the two.

Run with ``python examples/extrapolation.py``, which writes ``extrapolation.png``; ``NTKGP_SMALL=1`` makes it a smoke test.
"""

import os

import torch
from torch import Tensor, nn

import ntkgp
from ntkgp import plots

SMALL = os.environ.get("NTKGP_SMALL") == "1"
YEARS, KNOWN, WIDTH, STEPS = (12, 9, 32, 10) if SMALL else (40, 30, 256, 80)


class Years(nn.Module):
    """The year in decades, from the middle of the known years."""

    def forward(self, t: Tensor) -> Tensor:
        """Decades."""
        return (t - KNOWN / 2) / 10


def curve(t: Tensor) -> Tensor:
    """Parts per million minus 340: a curved trend and a season that is not a sine."""
    season = 3 * torch.sin(2 * torch.pi * t) - 0.8 * torch.cos(4 * torch.pi * t)
    return 1.3 * (t - KNOWN / 2) + 0.012 * (t - KNOWN / 2).square() + season


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    t = torch.arange(12 * YEARS).unsqueeze(1) / 12
    y = curve(t[:, 0]) + 0.3 * torch.randn(len(t), generator=generator)
    x_known, y_known, x_new, y_new = t[: 12 * KNOWN], y[: 12 * KNOWN], t[12 * KNOWN :], y[12 * KNOWN :]

    trend = nn.Sequential(Years(), ntkgp.mlp(1, width=WIDTH, activation=nn.SiLU(), generator=generator))
    season = nn.Sequential(
        ntkgp.networks.TrigonometricInputs(0.0, 0.5), ntkgp.mlp(2, width=WIDTH, activation=nn.SiLU(), generator=generator)
    )
    both = ntkgp.networks.SumOfNetworks(trend, season)
    tuned = ntkgp.tune(both, x_known, y_known, input_scales=False, steps=STEPS)
    posterior = tuned.fit(x_known, y_known)
    print(f"noise: std {tuned.noise_var**0.5:.3f}, 0.3 in truth")
    print(f"the {YEARS - KNOWN} hidden years: {ntkgp.report(posterior, x_new, y_new)}")

    grid = torch.linspace(KNOWN - 4, YEARS + 5, 600).unsqueeze(1)
    p = posterior.predict(grid)
    figure = plots.figure(9, 4)
    ax = plots.posterior_1d(figure.subplots(), grid[:, 0], p.mean, p.std, total_std=p.total_std, data=(x_known[:, 0], y_known))
    ax.plot(x_new, y_new, "o", color=plots.TRUTH, markersize=3, markeredgecolor="white", markeredgewidth=0.4, label="hidden")
    shown = y[12 * (KNOWN - 4) :]
    reach = float(2 * p.total_std.max())
    ax.set(xlabel="year", ylabel="ppm − 340", ylim=(float(shown.min()) - 5, float(p.mean.max()) + reach))
    ax.legend(loc="upper left", ncols=3, fontsize=8, frameon=False)
    figure.savefig("extrapolation.png", dpi=120)


if __name__ == "__main__":
    main()
