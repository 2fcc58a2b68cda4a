"""The automatic choice of a method, by counted operations, memory, and the accuracy that each can deliver."""

from collections.abc import Iterable
from dataclasses import replace

from torch import nn

from ntkgp.networks.infinite.layers import is_infinite
from ntkgp.posterior.choice.cost import Size
from ntkgp.posterior.exact.method import Exact
from ntkgp.posterior.lowrank.method import LowRank
from ntkgp.posterior.method import Method
from ntkgp.problem.source import Source

INFINITE = "a network of infinite width has a kernel and no weights"


def choose_method(module: nn.Module, source: Source, parameters: Iterable[str] | None) -> tuple[Method, str]:
    """Choose a method, and say why: exact, unless no dense form fits the memory or the matrix-free method takes less work."""
    if is_infinite(module):
        return Exact("kernel"), INFINITE
    return choose_for(Size.of(module, source, parameters))


def choose_for(size: Size) -> tuple[Method, str]:
    """Choose a method for this size, and say why."""
    side, approximate = size.exact_side(), LowRank()
    work = size.matrix_free(*approximate.settled(size.rows, size.parameters))
    both = f"{size.rows:,} observations and {size.parameters:,} parameters"
    if side is None:
        return approximate, f"for {both} neither dense matrix fits {size.free / 2**30:.1f} GiB of free memory"
    exact = size.kernel if side == "kernel" else size.weights
    if exact > work:
        return approximate, f"for {both} it takes {exact / work:.1f} times less work than the exact posterior"
    of = "observations" if side == "kernel" else "parameters"
    rows = size.rows if side == "kernel" else size.parameters
    return Exact(side), f"the matrix over the {rows:,} {of} fits the memory, and nothing else takes less work for {both}"


def settle(method: Method, module: nn.Module, source: Source, parameters: Iterable[str] | None) -> tuple[Method, str]:
    """Decide what the options of a given method leave open; raise if the method needs weights that the network has not."""
    if is_infinite(module):
        if not isinstance(method, Exact) or method.side == "weights":
            raise ValueError(
                f"{type(method).__name__} needs the weights of a network, and a network of infinite width has none; use "
                "method=ntkgp.Exact(), or give the network a finite width"
            )
        return replace(method, side="kernel"), INFINITE
    if not isinstance(method, Exact) or method.side is not None:
        return method, "you chose it"
    size = Size.of(module, source, parameters)
    # Where neither fits the memory, the smaller one can tell so.
    side = size.exact_side() or ("kernel" if size.rows <= size.parameters else "weights")
    return replace(method, side=side), "you chose Exact(); this form takes less work"
