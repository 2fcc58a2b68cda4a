"""The front door."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ntkgp._types import MeanFunction
from ntkgp.exact import Exact
from ntkgp.lowrank import LowRank
from ntkgp.posterior import Posterior
from ntkgp.problem import pose
from ntkgp.trained import TrainedNetworks

Method = Exact | LowRank | TrainedNetworks


def fit(
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    noise_var: float | Tensor,
    method: Method | None = None,
    prior_mean: MeanFunction | None = None,
    prior_var: float | Mapping[str, float] = 1.0,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> Posterior:
    """The posterior of the network's Gaussian process, y = m(x) + J(x)Δ + ε with Δ ~ N(0, prior_var), ε ~ N(0, noise_var).

    The module is copied and never changed. Memory and time are those of the method.

    Args:
        module: any ``nn.Module`` that maps (N, ...) to (N,) or (N, C), deterministic and row by row.
        x: training points, (N, ...).
        y: training targets, (N,) or (N, C); answers come in the same shape and dtype.
        noise_var: variance of the observation noise: a number, one per point (N,), or one per point and output (N, C).
        method: :class:`Exact` (the default) or :class:`TrainedNetworks`.
        prior_mean: None for zero (the paper's shifted targets), a function of x, or :func:`network_mean` for f(x; θ0).
        prior_var: prior variance of the weights' displacement: a number, or one per module name.
        generator: source of randomness of methods that need it; the global one when None.
        progress: show a progress bar.

    Example:
        >>> import torch, ntkgp
        >>> net = ntkgp.mlp(in_features=1, width=64, generator=torch.Generator().manual_seed(0))
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
        >>> posterior = ntkgp.fit(net, x, torch.sin(3 * x[:, 0]), noise_var=0.01)
        >>> p = posterior.predict(torch.tensor([[0.5], [3.0]]))
        >>> bool(p.std[0] < 0.2 and p.std[1] > 5)  # sure among the data, unsure away from it
        True
    """
    method = Exact() if method is None else method
    if not isinstance(method, Method):
        raise TypeError(
            f"method must be Exact(...), LowRank(...) or TrainedNetworks(...), got {method!r}; did you forget the parentheses?"
        )
    problem = pose(module, x, y, noise_var=noise_var, prior_mean=prior_mean, prior_var=prior_var, dtype=method.dtype)
    if isinstance(method, Exact):
        return method.fit(problem)
    return method.fit(problem, generator, progress)
