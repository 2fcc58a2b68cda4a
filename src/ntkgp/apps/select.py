"""Active learning: choose the points whose observation reduces the variance most."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ntkgp._system.check_data import check_noise
from ntkgp._system.check_options import check_count
from ntkgp.posterior.interface import Posterior


def select(
    posterior: Posterior,
    candidates: Tensor,
    count: int = 1,
    *,
    targets: Tensor | None = None,
    noise_var: float | Tensor | None = None,
) -> Int[Tensor, "count"]:
    """Choose the candidates to observe next, greedily by joint variance reduction.

    Each step takes the candidate whose noisy observation, added to the ones already chosen, minimises the sum of epistemic
    variances over the targets and outputs. The covariance of a Gaussian process does not depend on the observed values, so a
    whole batch can be chosen before anything is observed. Points of a batch do not cluster: each one is chosen for what the
    previous ones leave unknown.

    Cost: the joint covariance of candidates and targets, and 2·count·M·T·C² operations; memory 3·((M + T)·C)² numbers (M
    candidates, T targets). No candidate is chosen twice.

    Args:
        posterior: any of the three kinds; only its ``covariance`` and its noise are used.
        candidates: points that could be observed, (M, ...).
        count: number of points to choose, at most M.
        targets: points where the variance should become small, (T, ...); None for the candidates.
        noise_var: noise variance of the new observations, as in ``predict``; None for the noise of the fit.

    Returns:
        Indices into `candidates`, best first.

    Example:
        >>> import torch, ntkgp
        >>> net = ntkgp.mlp(1, width=64, generator=torch.Generator().manual_seed(0))
        >>> x = torch.tensor([[-1.0], [-0.5], [0.0]])
        >>> posterior = ntkgp.fit(net, x, x[:, 0].sin(), noise_var=0.01)
        >>> candidates = torch.linspace(-1, 1, 21).unsqueeze(1)
        >>> candidates[ntkgp.select(posterior, candidates, 2)].flatten()  # where there is no data yet
        tensor([0.8000, 0.4000])
    """
    check_count(count, "count", 1)
    if count > len(candidates):
        raise ValueError(f"count must be at most {len(candidates)}, the number of candidates, got {count}; lower it")
    points = candidates if targets is None else torch.cat([candidates, targets.to(candidates)])
    with torch.no_grad():
        noise = _noise(posterior, candidates, noise_var)
        covariance = posterior.covariance(points).double()
        M, C = noise.shape
        among = covariance[: M * C, : M * C]
        across = covariance[: M * C] if targets is None else covariance[: M * C, M * C :]
        return _greedy(among, across.clone(), noise, count)


def _greedy(
    among: Float[Tensor, "MC MC"], across: Float[Tensor, "MC TC"], noise: Float[Tensor, "M C"], count: int
) -> Int[Tensor, "count"]:
    """Greedy choice, given the covariances among the candidates and between candidates and targets; overwrites `across`."""
    M, C = noise.shape
    own = among.view(M, C, M, C).diagonal(dim1=0, dim2=2).movedim(-1, 0).clone()  # covariance of the outputs of each candidate
    own.diagonal(dim1=1, dim2=2).add_(noise)
    explained = among.new_zeros(0, M * C)  # explainedᵀ explained: the part of `among` explained by the chosen candidates
    free, chosen = torch.ones(M, dtype=torch.bool, device=among.device), []
    for _ in range(count):
        factors = torch.linalg.cholesky(own)
        gain = torch.linalg.solve_triangular(factors, across.view(M, C, -1), upper=False).square().sum(dim=(1, 2))
        best = int(torch.where(free, gain, -torch.inf).argmax())
        rows = slice(best * C, (best + 1) * C)
        now = among[rows] - explained[:, rows].T @ explained
        half, seen = (torch.linalg.solve_triangular(factors[best], t, upper=False) for t in (now, across[rows]))
        across -= half.T @ seen
        mine = half.T.view(M, C, C)
        own -= mine @ mine.mT
        explained, free[best] = torch.cat([explained, half]), False
        chosen.append(best)
    return torch.tensor(chosen, device=among.device)


def _noise(posterior: Posterior, candidates: Tensor, noise_var: float | Tensor | None) -> Float[Tensor, "M C"]:
    """The noise variance of each candidate and output."""
    known, M = posterior.predict(candidates[:1]), len(candidates)
    C = known.mean.numel()
    if noise_var is None:
        if known.noise_var is None:
            raise ValueError(
                "noise_var is missing: the fit had one noise variance per observation, so the noise of the candidates is "
                f"unknown; pass a number, or a tensor of shape ({M},), (1, {C}) or ({M}, {C})"
            )
        noise_var = known.noise_var.reshape(1, C)
    return check_noise(noise_var, (M, C)).to(candidates.device)
