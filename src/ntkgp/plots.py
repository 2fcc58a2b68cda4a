"""Pictures of a posterior. Each function draws into an Axes and returns it; matplotlib comes with the extra ``ntkgp[cli]``."""

from matplotlib.axes import Axes
from torch import Tensor

# Blue, orange and grey of the Okabe–Ito palette: told apart by every kind of colour vision.
MEAN, DATA, TRUTH = "#0072B2", "#D55E00", "#555555"


def posterior_1d(
    ax: Axes,
    x: Tensor,
    mean: Tensor,
    std: Tensor,
    *,
    data: tuple[Tensor, Tensor] | None = None,
    truth: Tensor | None = None,
    color: str = MEAN,
) -> Axes:
    """A mean over one input with bands of one and two standard deviations, and optionally the data and the true function.

    Args:
        ax: where to draw.
        x: M inputs, increasing.
        mean: (M,) means.
        std: (M,) standard deviations.
        data: the training inputs and targets, each (N,).
        truth: (M,) values of the true function.
        color: of the mean and its bands.

    Example:
        >>> import matplotlib; matplotlib.use("Agg")
        >>> import matplotlib.pyplot as plt, torch
        >>> x = torch.linspace(0, 1, 5)
        >>> ax = posterior_1d(plt.figure().subplots(), x, x.sin(), x, data=(x, x.sin()))
        >>> plt.close("all")
    """
    x, mean, std = (t.detach().cpu().double() for t in (x, mean, std))
    for width, alpha, label in ((2, 0.16, "±2 std"), (1, 0.28, "±1 std")):
        ax.fill_between(x, mean - width * std, mean + width * std, color=color, alpha=alpha, linewidth=0, label=label)
    if truth is not None:
        ax.plot(x, truth.cpu(), color=TRUTH, linewidth=1.0, linestyle=(0, (4, 2)), label="truth")
    ax.plot(x, mean, color=color, linewidth=1.8, label="mean")
    if data is not None:
        inputs, targets = (t.detach().cpu() for t in data)
        ax.plot(inputs, targets, "o", color=DATA, markersize=4, markeredgecolor="white", markeredgewidth=0.6, label="data")
    ax.set_xlim(float(x[0]), float(x[-1]))
    ax.spines[["top", "right"]].set_visible(False)
    return ax
