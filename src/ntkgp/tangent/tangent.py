"""The tangent of a network at θ0: J(x) at any x, by layer factors where they are known, by autodiff elsewhere."""

import copy
from collections.abc import Callable, Iterator
from itertools import chain

import torch
from torch import Tensor

from ntkgp._system.memory import by_halves, free_bytes
from ntkgp._system.precision import full_precision
from ntkgp.tangent.autodiff import AutodiffRows
from ntkgp.tangent.chunk import Chunk
from ntkgp.tangent.factors.recording import LayerFactors
from ntkgp.tangent.growing_factors import GrowingChunk
from ntkgp.tangent.jacobian import Jacobian, Source, working_bytes
from ntkgp.tangent.layout import Packing, ParameterLayout
from ntkgp.tangent.network import PureNetwork


class Tangent:
    """x ↦ J(x), the Jacobian with respect to the parameters at θ0, each in units of its prior standard deviation.

    Args:
        network: the frozen network.
        x: points; layer factors and autodiff are compared at the first and the last. A parameter on which they disagree (a
            layer used in a way its rule does not cover) is left to autodiff, so the fast path can be slow but not wrong.
        outputs: C.
        scales: prior standard deviation of each parameter.
        factored: False computes everything by autodiff.
    """

    def __init__(
        self, network: PureNetwork, x: Tensor, outputs: int, scales: dict[str, float] | None = None, factored: bool = True
    ):
        self.network, self.outputs = network, outputs
        self.scales = dict.fromkeys(network.anchor, 1.0) if scales is None else scales
        factors = LayerFactors.of(network, self.scales) if factored else LayerFactors(network, {})
        few = network.cast(x[[0, -1]]).detach()
        self._factors = factors.without(_wrong_factors(factors, self.scales, few, outputs))
        fast = self._factors.parameters
        slow = [name for name in network.anchor if name not in set(fast)]
        self.packing = Packing(
            layers=list(dict.fromkeys(self._factors.layers.values())),
            fast=ParameterLayout({name: network.anchor[name].shape for name in fast}),
            slow=ParameterLayout({name: network.anchor[name].shape for name in slow}),
        )

    @property
    def layout(self) -> ParameterLayout:
        """The flat order of the parameters."""
        return self.packing.layout

    def with_settings(self, settings: dict[str, Tensor]) -> "Tangent":
        """The tangent of the same network with other values for some of its buffers or weights."""
        other = copy.copy(self)
        other.network = self.network.with_settings(settings)
        other._factors = LayerFactors(other.network, self._factors.layers)
        return other

    def over(self, batches: Callable[[], Iterator[Tensor]], points: int) -> Jacobian:
        """J over all points of some batches.

        The first product stores the factors if they fit half of the free memory and no parameter is left to autodiff; if not,
        each product reads the batches again.
        """
        stored: Chunk | None = None

        def chunks() -> Iterator[Chunk]:
            nonlocal stored
            if stored is not None:
                yield stored
                return
            seen, buffer = 0, None
            for chunk in chain.from_iterable(self._chunks(self.network.cast(x)) for x in batches()):
                if seen == 0 and self._fits(chunk, points) and chunk.others is None:
                    buffer = chunk.room_for(points, None)
                if seen + chunk.count > points:
                    seen += chunk.count
                    break
                if buffer is not None:
                    buffer.write(seen, chunk)
                seen += chunk.count
                yield chunk
            if seen != points:
                raise ValueError(f"x gave {seen} points in this pass and {points} in the first; batches must stay the same")
            stored = buffer

        return Jacobian(self.packing, [chunks], points, self.outputs)

    def at(self, x: Tensor) -> Jacobian:
        """J(x); stores the factors if they fit half of the free memory. Differentiable in x if x requires gradients."""
        x = self.network.cast(x)
        numbers = self._factors.recording_numbers(x[:1].detach(), self.outputs)
        rows = max(1, min(len(x), working_bytes(x.device) // max(8 * numbers, 1), 65536))
        parts = x.split(rows)
        if len(parts) == 1:
            each = self._chunks(x)
            sources: list[Source] = [GrowingChunk.of(each[0])] if len(each) == 1 else [lambda: iter(each)]
            return Jacobian(self.packing, sources, len(x), self.outputs)
        sample = self.chunk(x[:1].detach())
        if not self._fits(sample, len(x)):
            recompute = lambda: chain.from_iterable(map(self._chunks, parts))  # noqa: E731
            return Jacobian(self.packing, [recompute], len(x), self.outputs)
        if x.requires_grad:
            chunks = [chunk for part in parts for chunk in self._chunks(part)]
            return Jacobian(self.packing, [lambda: iter(chunks)], len(x), self.outputs)
        buffer, start = sample.room_for(len(x), self._others(x)), 0
        for chunk in chain.from_iterable(map(self._chunks, parts)):
            buffer.write(start, chunk)
            start += chunk.count
        return Jacobian(self.packing, [GrowingChunk.of(buffer)], len(x), self.outputs)

    def _chunks(self, x: Tensor) -> list[Chunk]:
        """The rows of J at x, in one chunk, or in several if memory runs out."""
        return by_halves(lambda rows: self.chunk(x[rows]), len(x))

    def chunk(self, x: Tensor) -> Chunk:
        """The rows of J at x in one chunk: one forward and C backward passes."""
        with full_precision():
            found = self._factors.at(x, self.outputs)
        return Chunk([found[layer] for layer in self.packing.layers], self._others(x), len(x))

    def _others(self, x: Tensor) -> AutodiffRows | None:
        """The rows of J over the parameters without factors."""
        if not self.packing.slow.size:
            return None
        return AutodiffRows(self.network, self.packing.slow, self.scales, x, self.outputs)

    def _fits(self, sample: Chunk, points: int) -> bool:
        """Whether the factors of so many points fit half of the free memory."""
        return 2 * sample.bytes_per_point * points < free_bytes(self.network.device)


def _wrong_factors(factors: LayerFactors, scales: dict[str, float], x: Tensor, outputs: int) -> set[str]:
    """The parameters without a factor at x, or with a factor that differs from the autodiff Jacobian."""
    network, names = factors.network, factors.parameters or list(factors.network.anchor)
    layout = ParameterLayout({name: network.anchor[name].shape for name in names})
    truth = layout.split(AutodiffRows(network, layout, scales, x, outputs).dense())
    mine: dict[str, Tensor] = {}
    for layer, factor in factors.at(x, outputs).items():
        shape = layer.pack({name: truth[name][:1] for name in layer.parameters}).shape[1:]
        mine.update(layer.unpack(factor.dense().unflatten(1, shape)))
    tolerance = 1e4 * torch.finfo(network.dtype).eps
    return {name for name in names
            if name not in mine or (mine[name] - truth[name]).norm() > tolerance * truth[name].norm()}  # fmt: skip
