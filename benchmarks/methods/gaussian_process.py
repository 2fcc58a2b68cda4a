"""The exact Gaussian process with an ARD squared-exponential kernel, its hyper-parameters by marginal likelihood.

Rasmussen & Williams, "Gaussian Processes for Machine Learning", 2006, chapters 2 and 5: a length scale for each feature, signal
and noise variance, a constant mean; L-BFGS from three starts, the best evidence wins. Where a set repeats points with their
targets (wine), the evidence has no bound as the noise goes to zero: the noise variance is at least 10⁻⁶ of the target's
variance, as it is in this library's own tuning. Where there are more than 2000 training points the hyper-parameters are found
on a random 2000 of them; predictions use all. float64.
"""

import math

import torch
from torch import Tensor

from benchmarks.scores import Forecast
from benchmarks.timing import querying
from benchmarks.uci import Split

STARTS = ((3.0, 0.5), (1.0, 0.5), (1.0, 0.05))  # length scales, std of the noise; the signal has variance 1
LEAST_NOISE = 1e-6


def gaussian_process(split: Split, *, seed: int, device: str = "cpu", subset: int = 2000, steps: int = 100) -> Forecast:
    """Exact inference with the hyper-parameters of greatest evidence."""
    x, y, new = split.x.to(device), split.y.to(device), split.x_test.to(device)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:subset].to(device)
    fits = [_fit(x[order], y[order], *start, steps) for start in STARTS]
    evidence, found = max(fits, key=lambda fit: fit[0])
    factor = torch.linalg.cholesky(_covariance(x, found))
    residual = torch.cholesky_solve((y - found[-1]).unsqueeze(1), factor)
    signal, noise = found[-3].exp(), found[-2].exp() + LEAST_NOISE
    with querying(device):
        cross = _kernel(x, new, found)
        mean = found[-1] + (cross.T @ residual)[:, 0]
        explained = torch.linalg.solve_triangular(factor, cross, upper=False).square().sum(0)
        latent = (signal - explained).clamp(min=0)
    chosen = {"length_scales": found[:-3].exp().tolist(), "signal_variance": float(signal), "noise_variance": float(noise)}
    return split.forecast(mean, (latent + noise).sqrt(), latent.sqrt(), evidence=evidence, **chosen)


def _kernel(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """``signal · exp(-½ |a - b|²)`` in units of the length scales; h: their logs, of the variances, and the mean."""
    a, b = a / h[:-3].exp(), b / h[:-3].exp()
    squares = a.square().sum(1, keepdim=True) + b.square().sum(1) - 2 * a @ b.T
    return h[-3].exp() * torch.exp(-0.5 * squares.clamp(min=0))


def _covariance(x: Tensor, h: Tensor) -> Tensor:
    jitter = 1e-8 * h[-3].exp() + LEAST_NOISE
    return _kernel(x, x, h) + (h[-2].exp() + jitter) * torch.eye(len(x), dtype=x.dtype, device=x.device)


def _fit(x: Tensor, y: Tensor, length: float, noise: float, steps: int) -> tuple[float, Tensor]:
    """The evidence reached and the hyper-parameters."""
    start = [math.log(length)] * x.shape[1] + [0.0, 2 * math.log(noise), 0.0]
    h = torch.tensor(start, dtype=x.dtype, device=x.device, requires_grad=True)
    optimiser = torch.optim.LBFGS([h], max_iter=steps, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> float:
        """Minus the evidence per point; its gradient by ``½ tr((C⁻¹ - ααᵀ) dC)``, without differentiating the factor."""
        optimiser.zero_grad()
        covariance = _covariance(x, h)
        factor, failed = torch.linalg.cholesky_ex(covariance.detach())
        if failed:  # a step far out of the line search
            return math.inf
        inverse = torch.cholesky_inverse(factor)
        residual = y - h[-1]
        alpha = inverse @ residual.detach()
        slope = 0.5 * (inverse - torch.outer(alpha, alpha)) / len(x)
        torch.autograd.backward([covariance, residual], [slope, alpha / len(x)])
        logdet = 2 * factor.diagonal().log().sum()
        return float(0.5 * (residual.detach() @ alpha + logdet) / len(x) + 0.5 * math.log(2 * math.pi))

    optimiser.step(loss)  # pyright: ignore[reportArgumentType]
    return -loss() * len(x), h.detach()
