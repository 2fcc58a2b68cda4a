"""Units: networks compute with columns of mean 0 and standard deviation 1, users get answers in their own units."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp._system.check_data import check_scalable
from ntkgp.distributed.group import Group
from ntkgp.posterior.prediction import Prediction

SMALL, ENLARGED = 1e-140, 2.0**700  # below this, squares may underflow; a factor that changes no digit


@dataclass(frozen=True)
class Scaling:
    """standardised = (raw − center) / scale, column by column; () for a vector of targets, (D,) for a matrix.

    Example:
        >>> import torch
        >>> scaling = Scaling.of(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))  # the second column is constant
        >>> scaling.apply(torch.tensor([[3.0, 6.0]]))
        tensor([[1., 1.]], dtype=torch.float64)
    """

    center: Float[Tensor, "*D"]
    scale: Float[Tensor, "*D"]

    @classmethod
    def of(cls, values: Float[Tensor, "N *D"]) -> "Scaling":
        """Mean and standard deviation of each column, in float64; a constant column gets scale 1."""
        values = values.double()
        center = values.mean(dim=0)
        center = center + (values - center).mean(dim=0)  # the first mean has the rounding error of a sum of large numbers
        scale = _root_mean_square(values - center, lambda squares: squares.mean(dim=0))
        check_scalable(values, scale)
        return cls(center, _unless_constant(scale, values.abs().amax(dim=0)))

    @classmethod
    def of_all(cls, values: Float[Tensor, "N *D"], group: Group) -> "Scaling":
        """Mean and standard deviation over the rows of all ranks."""
        values = values.double()
        count = group.total(len(values))
        center = group.sum(values.sum(dim=0)) / count
        center = center + group.sum((values - center).sum(dim=0)) / count
        scale = _root_mean_square(values - center, lambda squares: group.sum(squares.sum(dim=0)) / count)
        largest = torch.cat(group.gather(values.abs().amax(dim=0, keepdim=True) if len(values) else values)).amax(dim=0)
        return cls(center, _unless_constant(scale, largest))

    @classmethod
    def none(cls, values: Float[Tensor, "N *D"]) -> "Scaling":
        """Center 0 and scale 1: values stay unchanged."""
        zero = torch.zeros_like(values[0], dtype=torch.float64)
        return cls(zero, torch.ones_like(zero))

    def apply(self, values: Tensor) -> Tensor:
        """Standardise values, in float64."""
        return (values.double() - self.center) / self.scale

    def undo(self, prediction: Prediction) -> Prediction:
        """Convert a prediction of standardised targets to the original units."""
        square = self.scale.square()
        noise = prediction.noise_var
        raw = Prediction(
            mean=self.center + self.scale * prediction.mean,
            variance=square * prediction.variance,
            lower=square * prediction.lower,
            upper=square * prediction.upper,
            noise_var=None if noise is None else square * noise,
            confidence=prediction.confidence,
        )
        if not all(bool(torch.isfinite(part).all()) for part in vars(raw).values() if isinstance(part, Tensor)):
            unit = float(self.scale.max())
            raise ValueError(f"predictions overflow: the targets have a std of {unit:.1e}; rescale them and fit again")
        return raw


def _root_mean_square(values: Float[Tensor, "N *D"], mean: Callable[[Tensor], Tensor]) -> Float[Tensor, "*D"]:
    """√ mean v², also where the squares underflow."""
    usual, enlarged = (mean((factor * values).square()).sqrt() / factor for factor in (1.0, ENLARGED))
    return torch.where(usual < SMALL, enlarged, usual)


def _unless_constant(scale: Float[Tensor, "*D"], largest: Float[Tensor, "*D"]) -> Float[Tensor, "*D"]:
    """The scales, with 1 for columns that vary by no more than rounding errors of their `largest` value.

    Rounding errors of values above 1e15 exceed 1; there their size is the scale, so that no standardised value is large.
    """
    rounding = 4 * torch.finfo(torch.float64).eps * largest
    return torch.where(scale <= rounding, rounding.clamp(min=1.0), scale)
