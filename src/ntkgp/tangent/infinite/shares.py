"""The kernel of an infinite network as a sum over groups of its layers, and its gradient by the recursion itself."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ntkgp.networks.infinite.network import tangent_of
from ntkgp.networks.infinite.steps import Priors, Values
from ntkgp.tangent.infinite.rows import InfiniteRows, Tile, each_tile, lower_tiles
from ntkgp.tangent.infinite.tangent import ALL, InfiniteTangent
from ntkgp.tangent.interfaces import KernelShares


@dataclass(frozen=True)
class InfiniteShares(KernelShares):
    """K_g(x, x) of one output for groups of layers. No kernel is stored: every call runs the recursion, tile by tile.

    A tile's intermediates fit the cache, and its graph is freed before the next: the gradient needs no n × n matrix but the
    weights it is given.
    """

    tangent: InfiniteTangent
    x: Tensor
    groups: list[list[str]]

    def matrix(self, prior_var: Float[Tensor, "G"]) -> Float[Tensor, "nC nC"]:
        """Σ_g v_g K_g. Cost: half of n² values of the recursion; memory the result."""
        with torch.no_grad():
            return InfiniteRows(self.tangent.infinite, self._inputs, self._priors(prior_var), self._values).gram()

    def sizes(self) -> Float[Tensor, "G"]:
        """The mean diagonal entry of each K_g."""
        priors = {name: (str(k), variance) for k, names in enumerate(self.groups) for name, variance in self._scaled(names)}
        with torch.no_grad():
            found = self.tangent.infinite.diagonal(self._inputs, priors, self._values).tangent
        return torch.stack([found[str(k)].mean() for k in range(len(self.groups))])

    def backward(self, prior_var: Float[Tensor, "G"], weights: Float[Tensor, "nC nC"]) -> Float[Tensor, "G"]:
        """⟨weights, K_g⟩ of each group, and the gradient of the settings. Cost: about three times :meth:`matrix`."""
        infinite, x = self.tangent.infinite, self._inputs
        learned = [name for name, value in self._values.items() if value.requires_grad]

        def gradient(tile: Tile) -> list[Tensor | None]:
            """The share of one tile; with leaves of its own, since tiles run beside each other."""
            rows, columns = tile
            prior = prior_var.detach().clone().requires_grad_()
            values = {name: value.detach().clone().requires_grad_(name in learned) for name, value in self._values.items()}
            with torch.enable_grad():
                block = infinite.block(x[rows], x[columns], self._priors(prior), values)
                found = tangent_of(block, block.cross)
            share = weights[rows, columns]
            leaves = [prior, *(values[name] for name in learned)]
            return list(torch.autograd.grad(found, leaves, share if rows == columns else 2 * share, allow_unused=True))

        shares = each_tile(gradient, lower_tiles(len(x)), x)
        by_prior, *by_values = [_total(parts) for parts in zip(*shares, strict=True)]
        for name, total in zip(learned, by_values, strict=True):
            if total is not None:
                self._values[name].backward(total)
        return torch.zeros_like(prior_var) if by_prior is None else by_prior

    @property
    def _inputs(self) -> Tensor:
        return self.tangent.network.cast(self.x)

    @property
    def _values(self) -> Values:
        return self.tangent.network.settings

    def _scaled(self, names: list[str]) -> list[tuple[str, float]]:
        return [(name, self.tangent.scales[name] ** 2) for name in names]

    def _priors(self, prior_var: Tensor) -> Priors:
        return {
            name: (ALL, v * variance)
            for names, v in zip(self.groups, prior_var, strict=True)
            for name, variance in self._scaled(names)
        }


def _total(parts: Sequence[Tensor | None]) -> Tensor | None:
    some = [part for part in parts if part is not None]
    return torch.stack(some).sum(dim=0) if some else None
