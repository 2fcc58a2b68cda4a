"""Exports of the page: ten lines of Python that reproduce it, and pictures."""

import io

import torch

from ntkgp.apps.explorer.model.compute import GRID, Answer, data
from ntkgp.apps.explorer.model.state import HIGH, LOW, State, StateError
from ntkgp.apps.plots.functions import posterior_1d
from ntkgp.apps.plots.style import figure

FIRST_LAYER = {
    "circle": f"ntkgp.networks.TrigonometricInputs({LOW}, {HIGH})",
    "scaled": f"ntkgp.networks.InputScales(torch.tensor([{1 / HIGH}]))",
    "raw": "torch.nn.Identity()",
}


def script(state: State) -> str:
    """Ten lines that fit the same posterior with the library and plot it; the random draws differ.

    Example:
        >>> print(script(State(points=((0.0, 1.0), (1.0, 2.0)), rank=2)).splitlines()[1])
        points = torch.tensor([[0.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    """
    if not state.points:
        raise StateError("there is nothing to export: add a point first")
    points = [list(point) for point in state.points]
    features = 2 if state.normalisation == "circle" else 1
    svd = "svd=ntkgp.linalg.DenseSVD(), dtype=torch.float64"
    method = f"ntkgp.LowRank(rank={min(state.rank, len(points))}, draws={state.tail}, {svd})"
    width = state.width
    if state.infinite:  # a head needs weights
        width, method = "math.inf", "ntkgp.Exact()"
    return f"""\
import math, torch, ntkgp, ntkgp.plots as plots
points = torch.tensor({points}, dtype=torch.float64)
x, y, grid = points[:, :1], points[:, 1], torch.linspace({LOW}, {HIGH}, {GRID}, dtype=torch.float64).unsqueeze(1)
generator, softplus = torch.Generator().manual_seed({state.seed}), torch.nn.Softplus(beta={state.sharpness})
network = ntkgp.mlp({features}, width={width}, depth={state.depth}, activation=softplus, generator=generator)
net = torch.nn.Sequential({FIRST_LAYER[state.normalisation]}, network).double()
exact = ntkgp.fit(net, x, y, noise_var={state.noise_var}).predict(grid)
p = ntkgp.fit(net, x, y, noise_var={state.noise_var}, method={method}).predict(grid)
ax = plots.posterior_1d(None, grid[:, 0], p.mean, p.std, data=(x[:, 0], y), total_std=p.total_std, bracket=(p.lower, p.upper))
ax.figure.savefig("posterior.png", dpi=160)
"""


def picture(state: State, answer: Answer, kind: str) -> bytes:
    """The main plot with its current settings, drawn by matplotlib; `kind` is "png" or "svg"."""
    if kind not in ("png", "svg"):
        raise ValueError(f"kind must be 'png' or 'svg', got {kind!r}")
    x, y = data(state)
    std, shown = answer.variance[:GRID].sqrt(), state.shown
    total = (answer.variance[:GRID] + state.noise_var).sqrt()
    drawing = figure(7, 4.4)
    ax = posterior_1d(
        drawing.subplots(),
        answer.x[:GRID],
        answer.mean[:GRID],
        std if "epistemic" in shown else torch.zeros_like(std),
        data=(x[:, 0], y),
        total_std=total if "total" in shown else None,
        bracket=(answer.lower[:GRID], answer.upper[:GRID]) if "bracket" in shown else None,
        samples=answer.samples[:, :GRID] if len(answer.samples) else None,
    )
    for name, variance, color, dashes in (("exact", answer.exact, "#000000", "-"), ("paper", answer.paper, "#D55E00", "--")):
        if name in shown:
            for side in (-2, 2):
                edge = answer.mean[:GRID] + side * variance[:GRID].sqrt()
                label = {"exact": "exact, ±2 std", "paper": "the paper's bound"}[name] if side == 2 else None
                ax.plot(answer.x[:GRID], edge, color=color, linewidth=0.9, linestyle=dashes, label=label)
    ax.set_xlabel("x")
    ax.set_ylabel("y")
    ax.legend(fontsize=7, frameon=False, ncols=5, loc="upper center", bbox_to_anchor=(0.5, 1.16), columnspacing=1.0)
    out = io.BytesIO()
    drawing.savefig(out, format=kind, dpi=160, bbox_inches="tight")
    return out.getvalue()
