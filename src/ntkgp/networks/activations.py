"""Activations that torch has no layer for; the infinite networks know all of them in closed form."""

import torch
from torch import Tensor, nn


class Sine(nn.Module):
    """sin x, the activation of networks with a local kernel: their first layer draws random frequencies.

    Example:
        >>> import torch
        >>> Sine()(torch.zeros(2))
        tensor([0., 0.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """The sine of x."""
        return torch.sin(x)


class Cosine(nn.Module):
    """cos x.

    Example:
        >>> import torch
        >>> Cosine()(torch.zeros(2))
        tensor([1., 1.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """The cosine of x."""
        return torch.cos(x)


class Erf(nn.Module):
    """erf x, a smooth step from −1 to 1.

    Example:
        >>> import torch
        >>> Erf()(torch.zeros(2))
        tensor([0., 0.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """The error function of x."""
        return torch.erf(x)


class Gaussian(nn.Module):
    """exp(−x²/2), a bump.

    Example:
        >>> import torch
        >>> Gaussian()(torch.zeros(2))
        tensor([1., 1.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """The bump at x."""
        return torch.exp(-0.5 * x.square())


class Absolute(nn.Module):
    """|x|.

    Example:
        >>> import torch
        >>> Absolute()(torch.tensor([-2.0, 1.0]))
        tensor([2., 1.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """The absolute value of x."""
        return x.abs()
