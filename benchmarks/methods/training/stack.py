"""Many small networks trained at once: every weight has a leading axis, one entry per member of the stack."""

import copy
import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]
WARM_UP = 3  # epochs before a CUDA graph is recorded; they count as training


class Stack(nn.Module):
    """``members`` networks of the same widths: Glorot uniform weights, zero biases.

    Args:
        members: M.
        widths: of the input, the hidden layers and the output.
        activation: between layers.
        dropout: one rate per member, for the input of every layer; applied whenever the networks are called.
    """

    def __init__(self, members: int, widths: Sequence[int], activation: Callable[[Tensor], Tensor],
                 dropout: Sequence[float] | None = None):  # fmt: skip
        super().__init__()
        pairs = list(itertools.pairwise(widths))
        bounds = [math.sqrt(6 / (a + b)) for a, b in pairs]
        self.weights = nn.ParameterList(
            [nn.Parameter((2 * torch.rand(members, a, b) - 1) * bound) for (a, b), bound in zip(pairs, bounds, strict=True)]
        )
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(members, 1, b)) for _, b in pairs])
        self.activation = activation
        rates = torch.zeros(0) if dropout is None else torch.tensor(dropout).view(members, 1, 1)
        self.rates: Tensor
        self.register_buffer("rates", rates)

    def forward(self, x: Tensor) -> Tensor:
        """``(M, B, D)``, or ``(B, D)`` for the same batch in all members, to ``(M, B, C)``."""
        x = x.expand(len(self.weights[0]), -1, -1)
        for k, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = self.activation(x) if k else x
            if self.rates.numel():
                x = x * (torch.rand_like(x) >= self.rates) / (1 - self.rates)
            x = torch.baddbmm(bias, x, weight)
        return x

    def squares(self) -> Tensor:
        """``(M,)``: the sum of squares of each member's weights, without the biases."""
        return torch.stack([weight.square().sum((1, 2)) for weight in self.weights]).sum(0)

    def module(self) -> nn.Sequential:
        """The first member as an ordinary module, float64; the activation must be a module."""
        assert isinstance(self.activation, nn.Module)
        layers: list[nn.Module] = []
        for weight, bias in zip(self.weights, self.biases, strict=True):
            layer = nn.Linear(weight.shape[1], weight.shape[2], dtype=torch.float64, device=weight.device)
            with torch.no_grad():
                layer.weight.copy_(weight[0].T)
                layer.bias.copy_(bias[0, 0])
            layers += [layer, copy.deepcopy(self.activation)]
        return nn.Sequential(*layers[:-1])


def train(stack: Stack, loss: Loss, x: Tensor, y: Tensor, *, epochs: int, batch: int, rate: float,
          watch: Callable[[], None] | None = None, every: int = 1) -> None:  # fmt: skip
    """Adam in batches that each member draws for itself.

    ``loss(x, y)`` gets ``(M, B, D)`` and ``(M, B)`` and returns the sum over members of each one's mean loss. ``watch()`` is
    called after every ``every`` epochs. On a GPU an epoch is recorded once as a CUDA graph and replayed.
    """
    members, cuda = len(stack.weights[0]), x.device.type == "cuda"
    optimiser = torch.optim.Adam(stack.parameters(), lr=rate, fused=True, capturable=cuda)

    def epoch() -> None:
        order = torch.rand(members, len(x), device=x.device).argsort(1)
        for part in order.split(batch, 1):
            optimiser.zero_grad(set_to_none=True)
            loss(x[part], y[part]).backward()
            optimiser.step()

    once: Callable[[], None] = epoch
    for done in range(1, epochs + 1):
        if cuda and done == WARM_UP + 1:
            once = _recorded(epoch)
        if cuda and done <= WARM_UP:
            _aside(epoch)
        else:
            once()
        if watch is not None and done % every == 0:
            watch()


def _aside(work: Callable[[], None]) -> None:
    """Run on a side stream: CUDA requires that of work before it is recorded."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)


def _recorded(work: Callable[[], None]) -> Callable[[], None]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay
