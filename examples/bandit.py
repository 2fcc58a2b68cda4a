"""A contextual bandit: the wheel, where the best arm pays only in a thin ring that a greedy player never explores.

Contexts come from the unit disc. Arm 0 pays 1.2 everywhere and the four others 1.0, but beyond radius 0.9 the arm of the
quadrant pays 50. A greedy player plays arm 0 forever. There are two ways to explore: ``UCB`` plays the arm with the highest
mean plus half a standard deviation, ``Thompson`` plays the best arm of a function drawn from the posterior.
``benchmarks/studies/bandits`` has the full comparison, with other methods and better networks for this problem.

``python examples/bandit.py`` writes ``bandit.png``; ``NTKGP_SMALL=1`` makes it a smoke test.
"""

import math
import os

import torch
from torch import Tensor, nn

import ntkgp
from ntkgp import plots
from ntkgp.bandits import UCB, Bandit, Thompson

SMALL = os.environ.get("NTKGP_SMALL") == "1"
ROUNDS, BATCH, SIDE = (60, 10, 20) if SMALL else (2000, 10, 200)
COLORS = ["#999999", "#0072B2", "#E69F00", "#009E73", "#CC79A7"]


def contexts(count: int, generator: torch.Generator) -> Tensor:
    """Uniform in the unit disc."""
    radius, angle = torch.rand(2, count, generator=generator, dtype=torch.float64)
    return radius.sqrt().unsqueeze(1) * torch.stack([(2 * math.pi * angle).cos(), (2 * math.pi * angle).sin()], dim=1)


def expected(x: Tensor) -> Tensor:
    """The expected reward of every arm."""
    pay = torch.tensor([1.2, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64).repeat(len(x), 1)
    quadrant = 1 + 2 * (x[:, 0] < 0).long() + (x[:, 1] < 0).long()
    return torch.where((x.norm(dim=1) > 0.9).unsqueeze(1) & (torch.arange(5) == quadrant.unsqueeze(1)), 50.0, pay)


def play(explore: UCB | Thompson) -> tuple[Bandit, Tensor]:
    """The bandit after all rounds, and its regret in each round."""
    g = torch.Generator().manual_seed(0)
    some = contexts(200, g)
    arms = []
    for _ in range(5):
        network = ntkgp.mlp(2, width=256, activation=nn.ReLU(), generator=g)
        arms.append(nn.Sequential(ntkgp.networks.InputScales(torch.full((2,), 4.0)), network).double())
    # The prior must allow rewards of several tens, and the noise must be so large that the fit does not follow a jump exactly.
    scale = 200.0 / float(ntkgp.kernel_diag(arms[0], some).mean())
    bandit, lost = Bandit(arms, explore, noise_var=10.0, prior_var=scale, skip=0.2, generator=g), []
    for x in contexts(ROUNDS, g).split(BATCH):
        pay, arm = expected(x), bandit.choose(x)
        mine = pay.gather(1, arm.unsqueeze(1)).squeeze(1)
        bandit.observe(x, arm, mine + 0.01 * torch.randn(len(x), generator=g, dtype=torch.float64))
        lost.append(pay.max(dim=1).values - mine)
    return bandit, torch.cat(lost)


def main() -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Circle

    side = torch.linspace(-1, 1, SIDE, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side)
    figure = plots.figure(10, 3.4)
    *maps, right = figure.subplots(1, 3)
    random = float((expected(grid).max(dim=1, keepdim=True).values - expected(grid))[grid.norm(dim=1) < 1].mean())
    for ax, (name, explore) in zip(maps, {"UCB": UCB(0.25), "Thompson": Thompson()}.items(), strict=True):
        bandit, lost = play(explore)
        print(
            f"{name}: regret {float(lost.sum()) / (random * ROUNDS):.1%} of random play, arms played {bandit.counts.tolist()}"
        )
        best = bandit.scores(grid).argmax(dim=1).double().where(grid.norm(dim=1) < 1, torch.nan)
        ax.imshow(best.view(SIDE, SIDE).T, origin="lower", extent=(-1, 1, -1, 1), cmap=ListedColormap(COLORS), vmin=0, vmax=4)
        ax.add_patch(Circle((0, 0), 0.9, fill=False, linestyle=":", linewidth=1))
        ax.set(title=f"{name}: the arm it would play", xticks=[], yticks=[])
        right.plot(lost.cumsum(0), label=name)
    right.plot(random * torch.arange(ROUNDS), color="black", linestyle=":", label="random")
    right.set(xlabel="contexts", ylabel="cumulative regret", yscale="log")
    right.spines[["top", "right"]].set_visible(False)
    right.legend(frameon=False)
    figure.savefig("bandit.png", dpi=120)


if __name__ == "__main__":
    main()
