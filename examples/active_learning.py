"""Active learning: choose the next measurements in batches, because each one costs money.

A function over the plane is smooth except for a ridge, and the first measurements all lie in one corner. ``ntkgp.select``
chooses batches that leave the least variance over the region of interest, and ``posterior.update`` adds them without starting
over. For comparison, a second run takes as many random measurements.

Run with ``python examples/active_learning.py``, which writes ``active_learning.png``; ``NTKGP_SMALL=1`` makes it a smoke test.
"""

import os

import torch
from torch import Tensor

import ntkgp
from ntkgp import plots

SMALL = os.environ.get("NTKGP_SMALL") == "1"
ROUNDS, BATCH, CANDIDATES, WIDTH = (2, 3, 60, 64) if SMALL else (8, 5, 600, 512)
NOISE = 0.05  # standard deviation


def truth(x: Tensor) -> Tensor:
    return torch.sin(2 * x[:, 0]) + torch.tanh(4 * (x[:, 1] - x[:, 0]))


def main() -> None:
    g = torch.Generator().manual_seed(0)

    def measured(x: Tensor) -> Tensor:
        return truth(x) + NOISE * torch.randn(len(x), generator=g, dtype=x.dtype)

    net = ntkgp.mlp(2, width=WIDTH, activation=torch.nn.Tanh(), generator=g)
    first = torch.rand(10, 2, generator=g, dtype=torch.float64) * 0.6 - 1
    candidates = torch.rand(CANDIDATES, 2, generator=g, dtype=torch.float64) * 2 - 1
    start = ntkgp.fit(net, first, measured(first), noise_var=NOISE**2)

    errors: dict[str, list[float]] = {}
    chosen: dict[str, Tensor] = {}
    for way in ("selected", "at random"):
        posterior, taken, errors[way] = start, torch.empty(0, 2, dtype=torch.float64), []
        for turn in range(ROUNDS + 1):
            p = posterior.predict(candidates)
            errors[way].append(float((p.mean - truth(candidates)).square().mean().sqrt()))
            if turn == ROUNDS:
                break
            if way == "selected":
                picks = ntkgp.select(posterior, candidates, BATCH)
            else:
                picks = torch.randperm(CANDIDATES, generator=g)[:BATCH]
            posterior = posterior.update(candidates[picks], measured(candidates[picks]))
            taken = torch.cat([taken, candidates[picks]])
        chosen[way] = taken
        print(f"{way:<10} root mean square error: " + " → ".join(f"{e:.2f}" for e in errors[way]))

    figure = plots.figure(11, 4)
    left, right = figure.subplots(1, 2)
    plots.uncertainty_map(start, (-1, 1), (-1, 1), left, first, resolution=20 if SMALL else 60)
    for k, (px, py) in enumerate(chosen["selected"].tolist()):
        left.text(px, py, str(k // BATCH + 1), fontsize=9, color="white", weight="bold", ha="center", va="center")
    left.set_title("uncertainty at the start, and the round of each chosen point", fontsize=10)
    for way, color in (("selected", plots.MEAN), ("at random", plots.TRUTH)):
        right.semilogy([BATCH * k for k in range(ROUNDS + 1)], errors[way], "o-", color=color, label=way)
    right.set(xlabel="new measurements", ylabel="root mean square error")
    right.legend(fontsize=8, frameon=False)
    figure.savefig("active_learning.png", dpi=120)


if __name__ == "__main__":
    main()
