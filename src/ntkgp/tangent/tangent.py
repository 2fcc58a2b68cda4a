"""The tangent of a network at θ0: J(x) at any x, by layer factors where they are known, by autodiff elsewhere."""

import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import torch
from torch import Tensor

from ntkgp._system.check_module import check_points_apart
from ntkgp._system.memory import by_halves, free_bytes, ran_out
from ntkgp._system.settings import full_precision
from ntkgp.tangent.autodiff import AutodiffRows
from ntkgp.tangent.chunk import Chunk
from ntkgp.tangent.factors.by_autodiff import ByAutodiff
from ntkgp.tangent.factors.checking import FEW, broken_rules, few_of, spread
from ntkgp.tangent.factors.layers import Layer
from ntkgp.tangent.factors.recording import OTHER_DTYPE, LayerFactors, Recording
from ntkgp.tangent.growing_factors import GrowingChunk
from ntkgp.tangent.interfaces import TangentKernel
from ntkgp.tangent.jacobian import Jacobian, Source, working_bytes
from ntkgp.tangent.layout import Packing, ParameterLayout
from ntkgp.tangent.network import PureNetwork, random_weights, rounding_unit, weighted_gradients

NO_RULE = "there is no rule for its layer"


class Tangent(TangentKernel):
    """x ↦ J(x), the Jacobian with respect to the parameters at θ0, each in units of its prior standard deviation.

    Layer factors are never trusted blindly. A few points decide which parameters have factors at all; then every recording
    checks at all of its points that the layers are used as their rules assume. A layer that is not is left to autodiff: the
    fast path can be slow but not wrong.

    Args:
        network: the frozen network.
        x: points; layer factors and autodiff are compared at a few of them.
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
        few = network.cast(few_of(x)).detach()
        broken = _broken_rules(factors, self.scales, few, outputs)
        self._factors = factors.without({name for layer in broken for name in layer.parameters})
        self._broken: dict[Layer, str] = {}  # layers whose rule did not hold at later points
        self._largest_batch = 1  # points of the largest batch that was compared with a smaller one
        fast = self._factors.parameters
        reasons = dict.fromkeys(network.anchor, NO_RULE) | _by_parameter(broken)
        self._slow = {name: reason for name, reason in reasons.items() if name not in set(fast)}
        self.packing = Packing(
            layers=list(dict.fromkeys(self._factors.layers.values())),
            fast=ParameterLayout({name: network.anchor[name].shape for name in fast}),
            slow=ParameterLayout({name: network.anchor[name].shape for name in self._slow}),
        )
        self._inspect(few)

    def _inspect(self, few: Tensor) -> None:
        """Compare a batch of a few points with a smaller one, and find the rounding unit of the network."""
        self._chunks(few, check=False)
        self.network.unit = max(self.network.unit, rounding_unit(self.network, few[:1]))

    @property
    def by_autodiff(self) -> dict[str, str]:
        """The parameters that autodiff differentiates, at all points or at some, each with the reason."""
        return self._slow | _by_parameter(self._broken)

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

    def over(self, batches: Callable[[], Iterator[Tensor]], points: int, store: bool = True) -> Jacobian:
        """J over all points of some batches.

        With `store`, the first product stores the factors if they fit half of the free memory and no parameter is left to
        autodiff; if not, each product reads the batches again. The first pass checks the layer rules at every point.
        """
        stored: Chunk | None = None
        checked = False

        def chunks() -> Iterator[Chunk]:
            nonlocal stored, checked
            if stored is not None:
                yield stored
                return
            seen, sample, buffer = 0, None, None
            for chunk in chain.from_iterable(self._chunks(self.network.cast(x), not checked) for x in batches()):
                if store and sample is None and self._fits(chunk, points) and chunk.others is None and not chunk.requires_grad:
                    buffer = chunk.room_for(points, None)
                sample = chunk if sample is None else sample
                if not chunk.like(sample):  # a rule does not hold from here on; the next pass knows it from the start
                    buffer = None
                if seen + chunk.count > points:
                    seen += chunk.count
                    break
                if buffer is not None:
                    buffer.write(seen, chunk)
                seen += chunk.count
                yield chunk
            if seen != points:
                raise ValueError(f"x gave {seen} points in this pass and {points} in the first; batches must stay the same")
            stored, checked = buffer, True

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
            return self.over(lambda: iter(parts), len(x))
        if not x.requires_grad and (buffer := self._buffered(x, parts, sample)) is not None:
            return Jacobian(self.packing, [GrowingChunk.of(buffer)], len(x), self.outputs)
        chunks = [chunk for part in parts for chunk in self._chunks(part)]
        return Jacobian(self.packing, [lambda: iter(chunks)], len(x), self.outputs)

    def _buffered(self, x: Tensor, parts: Iterable[Tensor], sample: Chunk) -> Chunk | None:
        """The rows of J at x, part by part in one buffer; None if some point does not have the factors of the sample."""
        buffer, start = sample.room_for(len(x), self._others(x)), 0
        for chunk in chain.from_iterable(map(self._chunks, parts)):
            if not chunk.like(sample):
                return None
            buffer.write(start, chunk)
            start += chunk.count
        return buffer

    def _chunks(self, x: Tensor, check: bool = True) -> list[Chunk]:
        """The rows of J at x, in one chunk, or in several if memory runs out."""
        return by_halves(lambda rows: self.chunk(x[rows], check), len(x))

    def chunk(self, x: Tensor, check: bool = True) -> Chunk:
        """The rows of J at x in one chunk: one forward and C backward passes, and one more that checks the layer rules."""
        with full_precision():
            found = self._factors.at(x, self.outputs, check)
        self._check_batch(x.detach(), found)
        self._broken.update(found.broken)
        factors = [
            ByAutodiff(x, layer, self.network, self.scales, self.outputs) if layer in self._broken else found.factors[layer]
            for layer in self.packing.layers
        ]
        others = self._others(x)
        if check and (others is not None or self._broken):
            AutodiffRows(self.network, self.layout, self.scales, x.detach(), self.outputs).check_forward_mode()
        return Chunk(factors, others, len(x))

    @torch.no_grad()
    def _check_batch(self, x: Tensor, found: Recording) -> None:
        """Raise if some points of the largest batch so far have another output or tangent there than in a smaller batch."""
        if len(x) <= self._largest_batch:
            return
        rows = spread(len(x))[: max(1, min(FEW, len(x) // 2))].flip(0).to(x.device)
        few = x[rows]
        alone = self._factors.at(few, self.outputs, check=False)
        check_points_apart(found.output[rows], alone.output, len(x))
        for layer in found.factors.keys() & alone.factors.keys():
            here, there = (factor.diag().sqrt() for factor in (found.factors[layer].chosen(rows), alone.factors[layer]))
            check_points_apart(here, there, len(x), here.amax(), len(few))
        broken = {name for layer in {**self._broken, **found.broken} for name in layer.parameters}
        if slow := [*self._slow, *sorted(broken)]:
            u = random_weights(alone.output)
            whole = torch.zeros_like(found.output).index_add_(0, rows, u)
            names = list(self.network.anchor)
            here, there = (weighted_gradients(self.network, names, *pair) for pair in ((x, whole), (few, u)))
            # A parameter without effect, such as a shift before a normalisation, has a gradient of rounding errors.
            rounding = torch.finfo(self.network.dtype).eps ** 0.5 * max(float(here[name].abs().amax()) for name in names)
            for name in slow:
                scale = here[name].abs().amax().clamp_min(rounding)
                check_points_apart(here[name], there[name], len(x), scale, len(few))
        if bool((x != x[:1]).any()):  # copies of one point cannot show whether points mix
            self._largest_batch = len(x)

    def _others(self, x: Tensor) -> AutodiffRows | None:
        """The rows of J over the parameters without factors."""
        if not self.packing.slow.size:
            return None
        return AutodiffRows(self.network, self.packing.slow, self.scales, x, self.outputs)

    def _fits(self, sample: Chunk, points: int) -> bool:
        """Whether the factors of so many points fit half of the free memory."""
        return 2 * sample.bytes_per_point * points < free_bytes(self.network.device)


def _broken_rules(factors: LayerFactors, scales: dict[str, float], x: Tensor, outputs: int) -> dict[Layer, str]:
    """The layers whose rule does not hold at a few points; raise if the network cannot be differentiated there."""
    network = factors.network
    try:
        broken = broken_rules(factors, x, outputs)
        if not factors.layers or broken:  # autodiff will be needed
            AutodiffRows(network, network.layout, scales, x[:1], outputs).dense()
    except (RuntimeError, MemoryError) as error:
        if ran_out(error):
            if len(x) > 1:
                return _broken_rules(factors, scales, x[: len(x) // 2], outputs)
            raise
        raise ValueError(
            "the module must be differentiable by its parameters with torch.func or plain autograd, got: "
            f"{str(error).splitlines()[0]} (torch.utils.checkpoint, for example, must be switched off)"
        ) from error
    for layer, reason in broken.items():
        if reason == OTHER_DTYPE:
            raise ValueError(
                f"{layer.weight!r} is {network.dtype}, but its layer computes in another dtype, as inside torch.autocast: its "
                "derivatives would have few digits; remove autocast from the module's forward, or use module.double(), where "
                "autocast does not act"
            )
    return broken


def _by_parameter(reasons: dict[Layer, str]) -> dict[str, str]:
    """The reason of each layer, for each of its parameters."""
    return {name: reason for layer, reason in reasons.items() for name in layer.parameters}
