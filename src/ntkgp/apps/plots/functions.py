"""Plots of a posterior over one or two inputs."""

import math

import torch
from torch import Tensor

from ntkgp.apps.plots.style import DATA, MAX_DRAWN_POINTS, MEAN, TRUTH, Axes, figure
from ntkgp.posterior.interface import Posterior
from ntkgp.problem.problem import Problem


def posterior_1d(
    ax: Axes | None,
    x: Tensor,
    mean: Tensor,
    std: Tensor,
    *,
    data: tuple[Tensor, Tensor] | None = None,
    truth: Tensor | None = None,
    color: str = MEAN,
    total_std: Tensor | None = None,
    bracket: tuple[Tensor, Tensor] | None = None,
    samples: Tensor | None = None,
) -> Axes:
    """A mean over one input with bands of one and two standard deviations, and optionally data, truth, noise and samples.

    Args:
        ax: axes to draw into; None for a new figure.
        x: M inputs, increasing.
        mean: (M,) means.
        std: (M,) standard deviations.
        data: the training inputs and targets, each (N,).
        truth: (M,) values of the true function.
        color: colour of the mean and its bands.
        total_std: (M,) standard deviations of a new observation; the part added by the noise is drawn in grey.
        bracket: (M,) certified lower and upper variances, ``(p.lower, p.upper)``; thin lines show the edges of the band of
            two standard deviations for each of them.
        samples: (S, M) values of sample functions, ``posterior.sample(S)(x)``.

    Example:
        >>> import torch
        >>> x = torch.linspace(0, 1, 5)
        >>> ax = posterior_1d(None, x, x.sin(), x, data=(x, x.sin()), total_std=(x**2 + 0.1).sqrt())
        >>> ax.get_legend_handles_labels()[1]
        ['±2 std with noise', '±2 std', '±1 std', 'mean', 'data']
    """
    ax = figure(6, 4).subplots() if ax is None else ax
    x, mean, std = (t.detach().cpu().double() for t in (x, mean, std))
    if total_std is not None:  # the part added by the noise, on both sides
        total = total_std.detach().cpu().double()
        for side, label in ((2, "±2 std with noise"), (-2, None)):
            ax.fill_between(x, mean + side * std, mean + side * total, color=TRUTH, alpha=0.16, linewidth=0, label=label)
    for width, alpha, label in ((2, 0.16, "±2 std"), (1, 0.28, "±1 std")):
        ax.fill_between(x, mean - width * std, mean + width * std, color=color, alpha=alpha, linewidth=0, label=label)
    if samples is not None:
        for k, sample in enumerate(samples.detach().cpu()):
            ax.plot(x, sample, color=color, alpha=0.6, linewidth=0.8, label=None if k else "samples")
    if bracket is not None:
        for k, variance in enumerate(bracket):
            reach = 2 * variance.detach().cpu().double().sqrt()
            for side in (mean - reach, mean + reach):
                ax.plot(x, side, color=color, linewidth=0.7, linestyle=":" if k else "-.")
            ax.lines[-1].set_label("upper" if k else "lower")
    if truth is not None:
        ax.plot(x, truth.detach().cpu(), color=TRUTH, linewidth=1.0, linestyle=(0, (4, 2)), label="truth")
    ax.plot(x, mean, color=color, linewidth=1.8, label="mean")
    if data is not None:
        inputs, targets = (t.detach().cpu() for t in data)
        ax.plot(inputs, targets, "o", color=DATA, markersize=4, markeredgecolor="white", markeredgewidth=0.6, label="data")
    ax.set_xlim(float(x[0]), float(x[-1]))
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def uncertainty_map(
    posterior: Posterior,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    ax: Axes | None = None,
    data: Tensor | None = None,
    *,
    show: str = "std",
    output: int = 0,
    resolution: int = 60,
) -> Axes:
    """A posterior over two inputs as filled contours, with the training points on top.

    Cost: a prediction at resolution² points.

    Args:
        posterior: posterior of a network with two inputs.
        x_range: lowest and highest value of the first input.
        y_range: lowest and highest value of the second input.
        ax: axes to draw into; None for a new figure.
        data: training inputs, (N, 2).
        show: ``"std"``, ``"total_std"`` or ``"mean"``.
        output: index of the output, if the network has several.
        resolution: number of points along each side.

    Example:
        >>> import torch, ntkgp
        >>> x = torch.rand(20, 2)
        >>> posterior = ntkgp.fit(ntkgp.mlp(2, width=32), x, x[:, 0], noise_var=0.1)
        >>> ax = uncertainty_map(posterior, (0, 1), (0, 1), data=x, resolution=10)
        >>> len(ax.figure.axes)  # and a colour bar
        2
    """
    if show not in ("std", "total_std", "mean"):
        raise ValueError(f"show must be 'std', 'total_std' or 'mean', got {show!r}")
    ax = figure(5.5, 4.4).subplots() if ax is None else ax
    like = problem_of(posterior).data.x
    first, second = (torch.linspace(*ends, resolution, dtype=like.dtype, device=like.device) for ends in (x_range, y_range))
    grid = torch.stack(torch.meshgrid(first, second, indexing="xy"), dim=-1)
    values = getattr(posterior.predict(grid.flatten(0, 1)), show).reshape(resolution, resolution, -1)[..., output]
    drawn = ax.contourf(first.cpu(), second.cpu(), values.detach().cpu(), levels=12, cmap="cividis")
    ax.figure.colorbar(drawn, ax=ax, label=show.replace("_", " "))
    if data is not None:
        points = data.detach().cpu()[:: math.ceil(len(data) / MAX_DRAWN_POINTS)]
        ax.plot(points[:, 0], points[:, 1], "o", color=DATA, markersize=4, markeredgecolor="white", markeredgewidth=0.6)
    ax.set(xlim=x_range, ylim=y_range)
    return ax


def problem_of(posterior: Posterior) -> Problem:
    """The problem of a posterior; raises a TypeError for anything else."""
    if not isinstance(posterior, Posterior):
        raise TypeError(f"posterior must come from ntkgp.fit, got {type(posterior).__name__}")
    return posterior.problem
