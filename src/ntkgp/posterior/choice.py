"""The automatic choice of a method."""

from torch import nn

from ntkgp.posterior.exact.method import Exact
from ntkgp.posterior.lowrank.method import LowRank
from ntkgp.posterior.method import Method
from ntkgp.problem.source import Source


def choose_method(module: nn.Module, source: Source) -> Method:
    """Choose `Exact` while a dense factorisation takes seconds, and `LowRank` for more rows."""
    most = Exact().most_rows(next(module.parameters()).device)
    return Exact() if source.rows() <= most else LowRank(rank=256, tail=16)
