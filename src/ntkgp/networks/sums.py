"""Sums: of networks, whose kernels add, and of a block and its input."""

from torch import Tensor, nn


class SumOfNetworks(nn.Module):
    """The sum of several networks; its tangent kernel is the sum of their tangent kernels.

    With prior variances of 1/M it averages the kernels of M networks; learned prior variances give a weighted sum.

    Example:
        >>> import torch, ntkgp
        >>> nets = [ntkgp.mlp(2, width=16) for _ in range(2)]
        >>> x = torch.randn(3, 2)
        >>> apart = ntkgp.kernel(nets[0], x) + ntkgp.kernel(nets[1], x)
        >>> torch.allclose(ntkgp.kernel(SumOfNetworks(*nets), x), apart, rtol=1e-4)
        True
    """

    def __init__(self, *networks: nn.Module):
        super().__init__()
        if not networks:
            raise ValueError("expected at least one network, got none")
        self.networks = nn.ModuleList(networks)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of the outputs."""
        total = self.networks[0](x)
        for network in self.networks[1:]:
            total = total + network(x)
        return total


class Residual(nn.Module):
    """x + block(x). In an infinite network the block ends in ``InfiniteLinear(math.inf, math.inf)``.

    Example:
        >>> import torch
        >>> Residual(torch.nn.ReLU())(torch.tensor([-1.0, 2.0]))
        tensor([-1.,  4.])
    """

    def __init__(self, block: nn.Module):
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        """The sum of x and what the block makes of it."""
        return x + self.block(x)
