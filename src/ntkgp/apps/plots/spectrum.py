"""The spectrum of the kernel."""

import torch
from torch import Tensor

from ntkgp.apps.plots.functions import problem_of
from ntkgp.apps.plots.style import LIGHT, MEAN, TRUTH, Axes, figure
from ntkgp.posterior.interface import Posterior
from ntkgp.posterior.lowrank.posterior import LowRankPosterior

ROWS = 4000  # of a kernel matrix whose eigenvalues are asked for
BRACKETS = (0.01, 0.1, 0.5, 0.9, 0.99)  # relative widths marked beside a spectrum


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
    values, rest, own_rank = _eigenvalues(source, noise_var)
    rank = own_rank if rank is None else rank
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
    problem = problem_of(source)
    head = source.head if isinstance(source, LowRankPosterior) else getattr(source, "bracket", None)
    rank = None if head is None else head.rank
    if head is not None and len(problem.data.noise_std) > ROWS:
        return head.values.cpu(), head.tail, rank
    values = torch.linalg.eigvalsh(problem.operators.gram().double()).flip(0).clamp_min(0).cpu()
    return values, 0.0, rank
