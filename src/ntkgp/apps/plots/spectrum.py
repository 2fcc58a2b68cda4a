"""Plot of the spectrum of the kernel."""

import torch
from torch import Tensor

from ntkgp.apps.plots.functions import problem_of
from ntkgp.apps.plots.style import LIGHT, MEAN, TRUTH, Axes, figure
from ntkgp.posterior.interface import Posterior
from ntkgp.posterior.lowrank.posterior import LowRankPosterior

MAX_KERNEL_ROWS = 4000  # largest kernel matrix that is decomposed completely
BRACKETS = (0.01, 0.1, 0.5, 0.9, 0.99)  # relative bracket widths marked on the right axis


def spectrum(
    source: Posterior | Tensor, noise_var: float | None = None, rank: int | None = None, ax: Axes | None = None
) -> Axes:
    """Eigenvalues of the whitened kernel against their index, the noise level, the head of K eigenvalues and its bracket.

    The data determine the directions above the noise; directions below it stay close to the prior. With the K largest
    eigenvalues known exactly, (upper − lower)/upper is at most λ/(λ + 1) at every point, where λ is the first eigenvalue
    outside the head: the axis on the right. The certificate of a posterior uses a bound on λ and can be somewhat wider.

    Cost: an eigendecomposition of the N·C × N·C kernel. Above 4,000 rows, a low-rank posterior shows the eigenvalues of its
    head, and a dotted line for the bound on the rest.

    Args:
        source: a posterior; or the eigenvalues of a kernel.
        noise_var: noise variance that divides the eigenvalues; 1 for a whitened kernel; None for a posterior.
        rank: number K of eigenvalues in the head; None for the rank of the posterior, if it has one.
        ax: axes to draw into; None for a new figure.

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
    shown = values[values > 1e-12 * values[0]]  # smaller values are rounding errors
    index = torch.arange(1, len(shown) + 1)
    if rank is not None:
        if not 1 <= rank <= len(values):
            raise ValueError(f"rank must be 1 to {len(values)}, the number of known eigenvalues, got {rank}")
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
    """Whitened eigenvalues in decreasing order; a bound on the rest, 0 if there is none; the rank of the posterior."""
    if isinstance(source, Tensor):
        if noise_var is None:
            raise ValueError("noise_var is missing; pass the noise variance, or 1 if the kernel is whitened")
        values = source.detach().cpu().double().flatten().sort(descending=True).values
        if not len(values) or not float(values[0]) > 0:
            raise ValueError(f"source must hold at least one positive eigenvalue, got {values}")
        return values / noise_var, 0.0, None
    if noise_var is not None:
        raise ValueError(f"a posterior knows its noise; leave out noise_var, got {noise_var!r}")
    problem = problem_of(source)
    head = source.head if isinstance(source, LowRankPosterior) else getattr(source, "bracket", None)
    rank = None if head is None else head.rank
    if head is not None and len(problem.data.noise_std) > MAX_KERNEL_ROWS:
        return head.values.cpu(), head.tail, rank
    values = torch.linalg.eigvalsh(problem.operators.gram().double()).flip(0).clamp_min(0).cpu()
    return values, 0.0, rank
