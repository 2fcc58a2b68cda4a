"""Plots of predictions against observations."""

import math

import torch
from torch import Tensor

from ntkgp.apps.diagnostics.evaluation import Evaluation
from ntkgp.apps.plots.style import DATA, LIGHT, MEAN, TRUTH, Axes, figure, thinned
from ntkgp.posterior.prediction import Prediction


def calibration(evaluation: Evaluation, ax: Axes | None = None) -> Axes:
    """Observed against claimed coverage of central intervals, with the band of 95 % of calibrated predictions.

    Below the diagonal the intervals cover less than they claim (over-confident), above it more (under-confident).

    Args:
        evaluation: from ``ntkgp.diagnostics.evaluate``.
        ax: axes to draw into; None for a new figure.

    Example:
        >>> import torch, ntkgp
        >>> p = ntkgp.Prediction(*torch.ones(5, 20))
        >>> ax = calibration(ntkgp.diagnostics.evaluate(p, torch.linspace(-2, 4, 20)))
        >>> ax.get_xlabel()
        'claimed coverage'
    """
    ax = figure(4, 4).subplots() if ax is None else ax
    claimed = torch.linspace(0, 1, 101, dtype=torch.float64)
    by_chance = 2 * (claimed * (1 - claimed) / len(evaluation.pit)).sqrt()
    low, high = (claimed - by_chance).clamp_min(0), (claimed + by_chance).clamp_max(1)
    ax.fill_between(claimed, low, high, color=TRUTH, alpha=0.16, linewidth=0, label="by chance")
    ax.plot([0, 1], [0, 1], color=TRUTH, linewidth=1.0, linestyle=(0, (4, 2)), label="ideal")
    ax.plot(claimed, evaluation.calibration(claimed), color=MEAN, linewidth=1.8, label="observed")
    ax.annotate("under-confident", (0.04, 0.95), ha="left", va="top", fontsize=8, color=TRUTH)
    ax.annotate("over-confident", (0.96, 0.05), ha="right", va="bottom", fontsize=8, color=TRUTH)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="claimed coverage", ylabel="observed coverage")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def pit(evaluation: Evaluation, ax: Axes | None = None) -> Axes:
    """Histogram of the PIT values: flat when calibrated, a valley when over-confident, a hill when under-confident.

    A slope says that the means are too low (rising) or too high (falling).

    Args:
        evaluation: from ``ntkgp.diagnostics.evaluate``.
        ax: axes to draw into; None for a new figure.

    Example:
        >>> import torch, ntkgp
        >>> p = ntkgp.Prediction(*torch.ones(5, 20))
        >>> ax = pit(ntkgp.diagnostics.evaluate(p, torch.linspace(-2, 4, 20)))
        >>> ax.get_ylabel()
        'density'
    """
    ax = figure(4, 4).subplots() if ax is None else ax
    bins, M = 10, len(evaluation.pit)
    heights = (torch.histc(evaluation.pit, bins, 0, 1) * bins / M).tolist()
    by_chance = 2 * math.sqrt((bins - 1) / M)  # two standard errors of a bar
    ax.axhspan(max(0, 1 - by_chance), 1 + by_chance, color=TRUTH, alpha=0.16, linewidth=0, zorder=0, label="by chance")
    ax.bar([k / bins for k in range(bins)], heights, width=1 / bins, align="edge", color=LIGHT, edgecolor="white")
    for edge in (1 - by_chance, 1 + by_chance):
        ax.axhline(edge, color=TRUTH, alpha=0.5, linewidth=0.7)  # draw the edges of the band above the bars
    ax.axhline(1, color=TRUTH, linewidth=1.0, linestyle=(0, (4, 2)), label="ideal")
    ax.set(xlim=(0, 1), ylim=(0, 1.15 * max(1 + by_chance, *heights)))
    ax.set(xlabel="PIT: predicted probability of a smaller value", ylabel="density")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def predicted(prediction: Prediction, y: Tensor, ax: Axes | None = None) -> Axes:
    """Predicted means with ±1 total standard deviation against the observations; draws at most 1000 points.

    Args:
        prediction: from ``posterior.predict``.
        y: observations in the shape of its mean.
        ax: axes to draw into; None for a new figure.

    Example:
        >>> import torch, ntkgp
        >>> ax = predicted(ntkgp.Prediction(*torch.ones(5, 20)), torch.linspace(-2, 4, 20))
        >>> ax.get_xlabel()
        'observed'
    """
    ax = figure(4, 4).subplots() if ax is None else ax
    mean, std, y = thinned(prediction.mean, prediction.total_std, y)
    ax.errorbar(y, mean, std, fmt="none", ecolor=MEAN, alpha=0.3, linewidth=0.9, label="±1 std")
    ax.plot(y, mean, "o", color=MEAN, markersize=3.5, markeredgecolor="white", markeredgewidth=0.5, label="mean")
    middle = float(y.mean())
    ax.axline((middle, middle), slope=1, color=TRUTH, linewidth=1.0, linestyle=(0, (4, 2)), label="ideal")
    ax.set(xlabel="observed", ylabel="predicted")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def residuals(prediction: Prediction, y: Tensor, ax: Axes | None = None) -> Axes:
    """Errors divided by the total standard deviation, against that standard deviation; draws at most 1000 points.

    If calibrated, 95 % of the points lie in the band at every standard deviation. Arguments as in :func:`predicted`.

    Example:
        >>> import torch, ntkgp
        >>> ax = residuals(ntkgp.Prediction(*torch.ones(5, 20)), torch.linspace(-2, 4, 20))
        >>> ax.get_xlabel()
        'total std'
    """
    ax = figure(4, 4).subplots() if ax is None else ax
    mean, std, y = thinned(prediction.mean, prediction.total_std, y)
    z = (y - mean) / std
    outside = z.abs() > 1.96
    ax.axhspan(-1.96, 1.96, color=TRUTH, alpha=0.16, linewidth=0, label="95 %")
    ax.axhline(0, color=TRUTH, linewidth=1.0, linestyle=(0, (4, 2)))
    for points, color, label in ((~outside, MEAN, "inside"), (outside, DATA, "outside")):
        ax.plot(
            std[points], z[points], "o", color=color, markersize=3.5, markeredgecolor="white", markeredgewidth=0.5, label=label
        )
    if std.max() > 10 * std.min():
        ax.set_xscale("log")
    else:
        ax.locator_params(axis="x", nbins=6)
    reach = 1.1 * max(3.0, float(z.abs().max()))
    ax.set(ylim=(-reach, reach), xlabel="total std", ylabel="(observed − predicted) / std")
    ax.spines[["top", "right"]].set_visible(False)
    return ax
