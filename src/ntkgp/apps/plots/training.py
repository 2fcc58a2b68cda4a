"""Plot of the learning curves of trained networks."""

import torch

from ntkgp.apps.plots.style import DATA, MEAN, TRUTH, Axes, figure
from ntkgp.posterior.interface import Posterior
from ntkgp.posterior.trained.posterior import TrainedPosterior
from ntkgp.posterior.trained.training.networks import NetworkPredictors


def learning_curves(posterior: Posterior, ax: Axes | None = None) -> Axes:
    """The loss of each trained network against the step, relative to the loss of the initial network, until it stopped.

    Losses end above zero: they include noise that is not learned, and the penalty for leaving the initial weights.

    Args:
        posterior: fitted by :class:`ntkgp.TrainedNetworks`.
        ax: axes to draw into; None for a new figure.

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
    for k, kind in reversed(list(enumerate(kinds))):  # draw the mean last, on top
        taken = steps <= trained.steps[k]
        label = kind if k == kinds.index(kind) else None
        style = {"color": colors[kind], "linewidth": 1.0 if k else 1.8, "marker": "o", "markersize": 3.5, "markevery": [-1]}
        ax.plot(steps[taken], relative[taken, k], label=label, **style)
    ax.set(yscale="log", xlabel="step", ylabel="loss ÷ loss of the initial network")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(fontsize=8, frameon=False)
    return ax
