"""The Jacobian of small networks in many digits: what the network as given computes in exact arithmetic."""

import mpmath
import torch
from torch import Tensor, nn

ACTIVATIONS = {
    nn.Identity: (lambda z: z, lambda z: mpmath.mpf(1)),
    nn.ReLU: (lambda z: max(z, mpmath.mpf(0)), lambda z: mpmath.mpf(z > 0)),
    nn.Tanh: (mpmath.tanh, lambda z: 1 - mpmath.tanh(z) ** 2),
    nn.Sigmoid: (lambda z: 1 / (1 + mpmath.exp(-z)), lambda z: mpmath.exp(-z) / (1 + mpmath.exp(-z)) ** 2),
}


def jacobian(net: nn.Sequential, x: Tensor) -> list[list[mpmath.mpf]]:
    """Rows (point-major) over all weights and biases of a Sequential of linear layers and activations."""
    with mpmath.workdps(60):
        return [row for point in x.double().tolist() for row in _rows(net, point)]


def _rows(net: nn.Sequential, point: list[float]) -> list[list[mpmath.mpf]]:
    """The rows of one point, by forward and reverse mode."""
    h, before = [mpmath.mpf(value) for value in point], []
    for layer in net:
        before.append(h)
        if isinstance(layer, nn.Linear):
            bias = [0.0] * layer.out_features if layer.bias is None else layer.bias.tolist()
            h = [mpmath.fdot(row, h) + b for row, b in zip(_numbers(layer.weight), bias, strict=True)]
        else:
            h = [ACTIVATIONS[type(layer)][0](value) for value in h]
    rows = []
    for c in range(len(h)):
        g, row = [mpmath.mpf(k == c) for k in range(len(h))], []
        for layer, a in zip(reversed(net), reversed(before), strict=True):
            if isinstance(layer, nn.Linear):
                row += [left * right for left in g for right in a]
                row += [] if layer.bias is None else g
                g = [mpmath.fdot(g, column) for column in zip(*_numbers(layer.weight), strict=True)]
            else:
                g = [left * ACTIVATIONS[type(layer)][1](z) for left, z in zip(g, a, strict=True)]
        rows.append(row)
    return rows


def _numbers(weight: Tensor) -> list[list[mpmath.mpf]]:
    return [[mpmath.mpf(value) for value in row] for row in weight.detach().to(torch.float64).tolist()]
