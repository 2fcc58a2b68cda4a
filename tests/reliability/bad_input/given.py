"""What an entry is called with, and what it must do with it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import ntkgp

NAN, INF = torch.nan, torch.inf
Y = torch.linspace(0.5, 3, 6, dtype=torch.float64).sin()
X = torch.linspace(-1, 1, 12, dtype=torch.float64).view(6, 2).sin()
QUERY = torch.tensor([[0.1, 0.3], [2.0, -1.0], [-1.0, -0.8]], dtype=torch.float64)


def net(out_features: int = 1, dtype: torch.dtype = torch.float64) -> nn.Module:
    return ntkgp.mlp(2, out_features, 4, 1, nn.Tanh(), generator=torch.Generator().manual_seed(0)).to(dtype)


@dataclass(frozen=True)
class Given:
    """What an entry is called with; a kind of bad input replaces some of it."""

    module: Callable[[], Any] = net
    x: Any = X
    y: Any = Y
    noise_var: Any = 0.1
    query: Any = QUERY
    prior_var: Any = 1.0
    prior_mean: Any = None
    generator: Any = field(default_factory=lambda: torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Outcome:
    """`words` stand in the message of a ValueError or TypeError, or of a NumericalWarning."""

    kind: str
    words: tuple[str, ...] = ()


def refused(*words: str) -> Outcome:
    return Outcome("refused", words)


def warned(*words: str) -> Outcome:
    return Outcome("warned", words)


answered = Outcome("answered")
