"""The prediction of a posterior at some points."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Prediction:
    """The posterior at M points: shape (M,) if y had shape (N,), (M, C) if it had (N, C).

    Attributes:
        mean: posterior mean.
        variance: epistemic variance, the uncertainty about the function; it shrinks with more data.
        lower: lower bound on the exact variance.
        upper: upper bound on the exact variance.
        noise_var: variance of the observation noise at these points; None if the training noise differed from point to
            point and none was passed to ``predict``.
        confidence: the probability with which the bracket [lower, upper] of each single variance holds. 1.0: it is certified,
            and holds for every point. Less: it rests on random draws, and holds at each point with this probability.

    Example:
        >>> import torch
        >>> p = Prediction(*torch.tensor([[1.0], [4.0], [4.0], [4.0], [5.0]]))
        >>> p.std, p.total_std
        (tensor([2.]), tensor([3.]))
        >>> p.interval(0.95)  # of a new observation: 1 ± 1.96 · 3
        (tensor([-4.8799]), tensor([6.8799]))
        >>> p.log_density(torch.tensor([4.0]))
        tensor([-2.5176])
    """

    mean: Float[Tensor, "*shape"]
    variance: Float[Tensor, "*shape"]
    lower: Float[Tensor, "*shape"]
    upper: Float[Tensor, "*shape"]
    noise_var: Float[Tensor, "*shape"] | None
    confidence: float = field(default=1.0, kw_only=True)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Prediction":
        """The prediction with every tensor changed: cast, moved or indexed.

        Example:
            >>> import torch
            >>> Prediction(*torch.ones(5, 2)).mapped(torch.Tensor.double).variance.dtype
            torch.float64
        """
        parts = {name: part if part is None else change(part) for name, part in vars(self).items() if name != "confidence"}
        return replace(self, **parts)

    @property
    def std(self) -> Tensor:
        """Epistemic standard deviation."""
        return self.variance.sqrt()

    @property
    def total_std(self) -> Tensor:
        """Standard deviation of a new observation: epistemic and noise together."""
        if self.noise_var is None:
            raise ValueError("the noise at these points is unknown; pass noise_var to predict")
        return (self.variance + self.noise_var).sqrt()

    def log_density(self, y: Tensor) -> Tensor:
        """Log density of each single observation, log N(y; mean, variance + noise_var), in the shape of the mean.

        Args:
            y: observations in the shape of the mean.
        """
        std = self.total_std
        check_observations(y, self.mean)
        if not bool((std > 0).all()):
            raise ValueError(
                "the total variance is 0 at some points, so y has no density there; pass a larger noise_var to predict"
            )
        return -0.5 * ((y - self.mean) / std).square() - std.log() - 0.5 * math.log(2 * math.pi)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the central interval that contains a new observation with probability `level`."""
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1, got {level!r}; 95 % is 0.95")
        reach = float(torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64))) * self.total_std
        return self.mean - reach, self.mean + reach


def check_observations(y: Tensor, mean: Tensor) -> None:
    """Raise unless y is finite and floating point, with the shape and device of the predicted mean."""
    if not isinstance(y, Tensor):
        raise TypeError(f"y must be a torch.Tensor, got {type(y).__name__}; use torch.as_tensor(y)")
    if not y.is_floating_point():
        raise TypeError(f"y must be real floating point, got {y.dtype}; use y.float() or y.double()")
    if y.shape != mean.shape:  # (M,) against (M, 1) would broadcast to (M, M)
        raise ValueError(
            f"y must have the shape of the prediction, {tuple(mean.shape)}, got {tuple(y.shape)}; use y.view_as(p.mean)"
        )
    if y.device != mean.device:
        raise ValueError(f"y is on {y.device} but the prediction is on {mean.device}; move one with .to(...)")
    if not bool(torch.isfinite(y).all()):
        raise ValueError("y holds NaN or infinity; leave such points out of x and y")
