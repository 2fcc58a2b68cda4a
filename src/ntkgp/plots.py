"""Pictures of a posterior. Each function draws into an Axes and returns it; matplotlib comes with the extra ``ntkgp[cli]``."""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ntkgp.evaluation import Evaluation
from ntkgp.lowrank import LowRankPosterior
from ntkgp.posterior import Posterior, Prediction
from ntkgp.predictors import NetworkPredictors
from ntkgp.problem import Problem
from ntkgp.trained import TrainedPosterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:  # an extra: asked for when something is drawn, not when the library is imported
    Axes = Figure = Any

# Blue, orange and grey of the Okabe–Ito palette: told apart by every kind of colour vision.
MEAN, DATA, TRUTH = "#0072B2", "#D55E00", "#555555"
LIGHT = "#99C6E0"  # the blue at 40 % on white
DRAWN = 1000  # points of a scatter plot: more would only cover each other
ROWS = 4000  # of a kernel matrix whose eigenvalues are asked for
BRACKETS = (0.01, 0.1, 0.5, 0.9, 0.99)  # relative widths marked beside a spectrum


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
    """A mean over one input with bands of one and two standard deviations, and what else is given: data, truth, noise, samples.

    Args:
        ax: where to draw; a new figure when None.
        x: M inputs, increasing.
        mean: (M,) means.
        std: (M,) standard deviations.
        data: the training inputs and targets, each (N,).
        truth: (M,) values of the true function.
        color: of the mean and its bands.
        total_std: (M,) standard deviations of a new observation: what the noise adds to the outer band, in grey.
        bracket: (M,) certified lower and upper variances, ``(p.lower, p.upper)``: thin lines where the band of two standard
            deviations would end with them.
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
    if total_std is not None:  # what the noise adds to the outer band, on either side
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


def calibration(evaluation: Evaluation, ax: Axes | None = None) -> Axes:
    """Observed against claimed coverage of central intervals, and where 95 % of calibrated predictions would lie.

    Below the diagonal the intervals cover less than they claim (over-confident), above it more (under-confident).

    Args:
        evaluation: from ``ntkgp.evaluate``.
        ax: where to draw; a new figure when None.

    Example:
        >>> import torch, ntkgp
        >>> p = ntkgp.Prediction(*torch.ones(5, 20))
        >>> ax = calibration(ntkgp.evaluate(p, torch.linspace(-2, 4, 20)))
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
        evaluation: from ``ntkgp.evaluate``.
        ax: where to draw; a new figure when None.

    Example:
        >>> import torch, ntkgp
        >>> p = ntkgp.Prediction(*torch.ones(5, 20))
        >>> ax = pit(ntkgp.evaluate(p, torch.linspace(-2, 4, 20)))
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
        ax.axhline(edge, color=TRUTH, alpha=0.5, linewidth=0.7)  # the band again where the bars hide it
    ax.axhline(1, color=TRUTH, linewidth=1.0, linestyle=(0, (4, 2)), label="ideal")
    ax.set(xlim=(0, 1), ylim=(0, 1.15 * max(1 + by_chance, *heights)))
    ax.set(xlabel="PIT: predicted probability of a smaller value", ylabel="density")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def predicted(prediction: Prediction, y: Tensor, ax: Axes | None = None) -> Axes:
    """Predicted means with ±1 total standard deviation against what was observed; at most a thousand points are drawn.

    Args:
        prediction: from ``posterior.predict``.
        y: observations in the shape of its mean.
        ax: where to draw; a new figure when None.

    Example:
        >>> import torch, ntkgp
        >>> ax = predicted(ntkgp.Prediction(*torch.ones(5, 20)), torch.linspace(-2, 4, 20))
        >>> ax.get_xlabel()
        'observed'
    """
    ax = figure(4, 4).subplots() if ax is None else ax
    mean, std, y = _drawn(prediction.mean, prediction.total_std, y)
    ax.errorbar(y, mean, std, fmt="none", ecolor=MEAN, alpha=0.3, linewidth=0.9, label="±1 std")
    ax.plot(y, mean, "o", color=MEAN, markersize=3.5, markeredgecolor="white", markeredgewidth=0.5, label="mean")
    middle = float(y.mean())
    ax.axline((middle, middle), slope=1, color=TRUTH, linewidth=1.0, linestyle=(0, (4, 2)), label="ideal")
    ax.set(xlabel="observed", ylabel="predicted")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def residuals(prediction: Prediction, y: Tensor, ax: Axes | None = None) -> Axes:
    """Errors in units of the total standard deviation against that standard deviation; at most a thousand points are drawn.

    Calibrated: 95 % lie in the band, whatever the standard deviation. Arguments as in :func:`predicted`.

    Example:
        >>> import torch, ntkgp
        >>> ax = residuals(ntkgp.Prediction(*torch.ones(5, 20)), torch.linspace(-2, 4, 20))
        >>> ax.get_xlabel()
        'total std'
    """
    ax = figure(4, 4).subplots() if ax is None else ax
    mean, std, y = _drawn(prediction.mean, prediction.total_std, y)
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


def spectrum(
    source: Posterior | Tensor, noise_var: float | None = None, rank: int | None = None, ax: Axes | None = None
) -> Axes:
    """Eigenvalues of the whitened kernel against their index, the noise, what a rank keeps, and the bracket it gives.

    Directions above the noise are learned from the data, those below stay as the prior has them. With the K largest known
    exactly, (upper − lower)/upper is at most λ/(λ + 1) at every point, where λ is the first eigenvalue left out: the axis on
    the right. The certificate of a posterior rests on a bound on λ and can be somewhat wider.

    Cost: an eigendecomposition of the N·C × N·C kernel; beyond 4,000 rows a low-rank posterior shows the eigenvalues it has
    kept and a dotted line for the bound on the others.

    Args:
        source: a posterior; or the eigenvalues of a kernel.
        noise_var: what the eigenvalues are divided by, 1 where the kernel is whitened; a posterior knows its own.
        rank: K; that of the posterior when None, where it has one.
        ax: where to draw; a new figure when None.

    Example:
        >>> import torch, ntkgp
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
        >>> kernel = ntkgp.kernel(ntkgp.mlp(1, width=64), x)
        >>> ax = spectrum(torch.linalg.eigvalsh(kernel), noise_var=0.1, rank=5)
        >>> ax.get_xlabel(), ax.get_xscale(), ax.get_yscale()
        ('index', 'log', 'log')
    """
    ax = figure(5.5, 4).subplots() if ax is None else ax
    values, rest, kept = _eigenvalues(source, noise_var)
    rank = kept if rank is None else rank
    shown = values[values > 1e-12 * values[0]]  # the others are rounding
    index = torch.arange(1, len(shown) + 1)
    if rank is not None:
        if not 1 <= rank <= len(values):
            raise ValueError(f"rank must be 1 to {len(values)}, the eigenvalues that are known, got {rank}")
        first = float(values[rank]) if rank < len(values) else rest
        width = max(first, 0.0) / (max(first, 0.0) + 1)
        ax.axvspan(0.9, rank + 0.5, color=LIGHT, alpha=0.4, linewidth=0, label=f"K = {rank}: bracket {width:.2g}")
    ax.axhline(1, color=TRUTH, linewidth=1.0, linestyle=(0, (4, 2)), label="noise")
    ax.plot(index, shown, "o-", color=MEAN, markersize=3.5, linewidth=1.0, label="eigenvalue ÷ noise")
    if rest > 0:
        ax.axhline(rest, color=MEAN, linewidth=1.0, linestyle=":", label="the others lie below")
    ax.set(xscale="log", yscale="log", xlim=(0.9, 1.1 * max(len(shown), 2)))
    ax.set(xlabel="index", ylabel="eigenvalue ÷ noise variance")
    right = ax.secondary_yaxis("right")
    right.set_yticks([b / (1 - b) for b in BRACKETS], labels=[f"{b:g}" for b in BRACKETS])
    right.set_yticks([], minor=True)
    right.set_ylabel("bracket, if this is the first left out")
    ax.spines["top"].set_visible(False)
    ax.legend(fontsize=8, frameon=False, loc="upper right")
    return ax


def _eigenvalues(source: Posterior | Tensor, noise_var: float | None) -> tuple[Tensor, float, int | None]:
    """Whitened eigenvalues, decreasing; a bound on those that are not among them; how many the posterior keeps."""
    if isinstance(source, Tensor):
        if noise_var is None:
            raise ValueError("noise_var is missing; pass the noise variance, or 1 for the eigenvalues of a whitened kernel")
        values = source.detach().cpu().double().flatten().sort(descending=True).values
        if not len(values) or not float(values[0]) > 0:
            raise ValueError(f"source must hold at least one positive eigenvalue, got {values}")
        return values / noise_var, 0.0, None
    if noise_var is not None:
        raise ValueError(f"a posterior knows its noise; expected noise_var=None, got {noise_var!r}")
    problem = _problem(source)
    head = source.head if isinstance(source, LowRankPosterior) else getattr(source, "bracket", None)
    kept = None if head is None else head.rank
    if head is not None and len(problem.noise_std) > ROWS:
        return head.values.cpu(), head.tail, kept
    values = torch.linalg.eigvalsh(problem.kernel).flip(0).clamp_min(0).cpu()
    return values, 0.0, kept


def learning_curves(posterior: Posterior, ax: Axes | None = None) -> Axes:
    """The loss of each trained network against the step, relative to that of the initial network, until it stopped.

    Losses end above zero: what is left is noise that was not learned, and the price of leaving the initial weights.

    Args:
        posterior: fitted by :class:`ntkgp.TrainedNetworks`.
        ax: where to draw; a new figure when None.

    Example:
        >>> import torch, ntkgp
        >>> x = torch.linspace(-1, 1, 8).unsqueeze(1)
        >>> posterior = ntkgp.fit(ntkgp.mlp(1, width=32), x, x[:, 0], noise_var=0.1, method=ntkgp.TrainedNetworks(rank=2))
        >>> len(learning_curves(posterior).lines)
        3
    """
    predictors = getattr(posterior, "predictors", None)
    if not isinstance(posterior, TrainedPosterior) or not isinstance(predictors, NetworkPredictors):
        raise TypeError(f"posterior must be fitted with method=TrainedNetworks(...), got {type(posterior).__name__}")
    ax = figure(5.5, 4).subplots() if ax is None else ax
    trained, head = predictors.trained, posterior.plan.svd.rank
    losses = torch.tensor(trained.losses, dtype=torch.float64)
    relative = losses / losses[0].clamp_min(torch.finfo(torch.float64).tiny)
    steps = 1 + 10 * torch.arange(len(losses))
    kinds = ["mean"] + ["singular vectors"] * head + ["random targets"] * (relative.shape[1] - 1 - head)
    colors = {"mean": DATA, "singular vectors": MEAN, "random targets": TRUTH}
    for k, kind in reversed(list(enumerate(kinds))):  # the mean on top
        taken = steps <= trained.steps[k]
        label = kind if k == kinds.index(kind) else None
        style = {"color": colors[kind], "linewidth": 1.0 if k else 1.8, "marker": "o", "markersize": 3.5, "markevery": [-1]}
        ax.plot(steps[taken], relative[taken, k], label=label, **style)
    ax.set(yscale="log", xlabel="step", ylabel="loss ÷ loss of the initial network")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(fontsize=8, frameon=False)
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
    """The posterior over two inputs as filled contours, with the training points on top.

    Cost: a prediction at resolution² points.

    Args:
        posterior: of a network with two inputs.
        x_range: ends of the first input.
        y_range: ends of the second input.
        ax: where to draw; a new figure when None.
        data: training inputs, (N, 2).
        show: ``"std"``, ``"total_std"`` or ``"mean"``.
        output: which one, where the network has several.
        resolution: points along each side.

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
    like = _problem(posterior).x
    first, second = (torch.linspace(*ends, resolution, dtype=like.dtype, device=like.device) for ends in (x_range, y_range))
    grid = torch.stack(torch.meshgrid(first, second, indexing="xy"), dim=-1)
    values = getattr(posterior.predict(grid.flatten(0, 1)), show).reshape(resolution, resolution, -1)[..., output]
    drawn = ax.contourf(first.cpu(), second.cpu(), values.detach().cpu(), levels=12, cmap="cividis")
    ax.figure.colorbar(drawn, ax=ax, label=show.replace("_", " "))
    if data is not None:
        points = data.detach().cpu()[:: math.ceil(len(data) / DRAWN)]
        ax.plot(points[:, 0], points[:, 1], "o", color=DATA, markersize=4, markeredgecolor="white", markeredgewidth=0.6)
    ax.set(xlim=x_range, ylim=y_range)
    return ax


def _problem(posterior: Posterior) -> Problem:
    if not isinstance(posterior, Posterior):
        raise TypeError(f"posterior must come from ntkgp.fit, got {type(posterior).__name__}")
    return posterior.problem


def figure(width: float, height: float) -> Figure:
    """An empty figure of its own, not one of pyplot's; sizes in inches.

    Example:
        >>> figure(4, 3).axes
        []
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need matplotlib; install it with pip install 'ntkgp[cli]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def _drawn(*values: Tensor) -> list[Tensor]:
    flat = [t.detach().cpu().double().flatten() for t in values]
    every = math.ceil(len(flat[0]) / DRAWN)
    return [t[::every] for t in flat]
