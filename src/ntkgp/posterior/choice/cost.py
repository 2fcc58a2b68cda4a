"""What each way to a posterior costs: operations and memory, counted before the work. The automatic choices compare these."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from ntkgp._system.check_module import chosen_parameters
from ntkgp._system.memory import free_bytes
from ntkgp.problem.source import Source

ROOM = 512 * 2**20  # bytes that a dense form needs beside its matrix: blocks of queries, layer factors
PAIR_SLOWDOWN = 4  # time per operation in kernel blocks, relative to a large matrix product
PRODUCT_SLOWDOWN = 1.5  # the same for products with J
SOLVER_STEPS = 80  # typical number of block steps of a matrix-free fit: 65 to 143 with heads of 1,024 to 256 on 9,000 points
HEAD_PRODUCTS = 6  # products with G per direction of the head


@dataclass(frozen=True)
class Size:
    """The size of a fit, over all ranks."""

    points: int  # N
    rows: int  # N·C
    parameters: int  # P
    pair: int  # about how many multiplications the kernel takes per pair of points
    free: int  # bytes of free memory
    ranks: int = 1

    @classmethod
    def of(cls, module: nn.Module, source: Source, parameters: Iterable[str] | None) -> "Size":
        """Count. Cost: one pass over the batches, if x gives batches. Ranks agree on rank 0's free memory."""
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        names = named.keys() if parameters is None else chosen_parameters(module, parameters)
        shapes, group, free = [named[name].shape for name in names], source.group, free_bytes(next(module.parameters()).device)
        rows, outputs = source.sizes()
        rows = max(1, rows)  # no points are refused later
        return cls(
            points=max(1, rows // outputs),
            rows=rows,
            parameters=sum(shape.numel() for shape in shapes),
            pair=sum(shape[0] + shape.numel() // shape[0] for shape in shapes if len(shape) > 1 and shape.numel()) + 1,
            free=free if group is None else group.facts(free)[0],
            ranks=1 if group is None else group.size,
        )

    def fits(self, matrix_rows: int) -> bool:
        """Whether a float64 matrix of so many rows and columns fits the free memory."""
        return 8 * matrix_rows**2 + ROOM < self.free

    @property
    def kernel(self) -> float:
        """Operations of the exact posterior over the observations: the kernel and its factorisation."""
        return PAIR_SLOWDOWN * self.points**2 * self.pair + self.rows**3 / 3

    @property
    def weights(self) -> float:
        """Operations of the exact posterior over the weights: one sum over the points, and a factorisation."""
        return self.rows * self.parameters**2 / self.ranks + self.parameters**3 / 3

    def matrix_free(self, rank: int, draws: int) -> float:
        """Operations of a head and a block solve: 4·N·C·P per column and product with G."""
        columns = HEAD_PRODUCTS * rank + SOLVER_STEPS * (1 + draws)
        return PRODUCT_SLOWDOWN * columns * 4 * self.rows * self.parameters / self.ranks

    def exact_side(self) -> str | None:
        """The cheaper exact form of those that fit the memory; None if neither does."""
        costs = {}
        if self.fits(self.rows):
            costs["kernel"] = self.kernel
        if self.fits(self.parameters):
            costs["weights"] = self.weights
        return min(costs, key=lambda side: costs[side]) if costs else None


def most_kernel_rows(device: torch.device) -> int:
    """The largest N·C for which the kernel matrix fits the free memory."""
    return math.isqrt(max(0, free_bytes(device) - ROOM) // 8)
