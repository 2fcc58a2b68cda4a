"""Records layer factors in one forward pass and C backward passes; no gradients of the weights are computed."""

from functools import partial

import torch
from torch import Tensor, nn

from ntkgp.tangent.factors.direct import Direct
from ntkgp.tangent.factors.factor import Factor
from ntkgp.tangent.factors.layers import Layer, layer_kind
from ntkgp.tangent.factors.lookup import Lookup
from ntkgp.tangent.factors.outer import Outer
from ntkgp.tangent.network import PureNetwork

Call = tuple[str, Tensor, int, Tensor]  # path of the layer, its input, the input's version, the zero added to its output


class LayerFactors:
    """The layers of a network that have a rule, and their factors at any points."""

    def __init__(self, network: PureNetwork, layers: dict[str, Layer]):
        self.network, self.layers = network, layers

    @classmethod
    def of(cls, network: PureNetwork, scales: dict[str, float]) -> "LayerFactors":
        """All layers of the network that have a rule; `scales` has the prior standard deviation of each parameter."""
        names = {id(p): name for name, p in network.module.named_parameters() if name in network.anchor}
        layers = {}
        for path, module in network.module.named_modules():
            kind, weight = layer_kind(module), names.get(id(getattr(module, "weight", None)))
            if kind is None or weight is None:
                continue
            bias = names.get(id(getattr(module, "bias", None)))
            shape = network.anchor[weight].shape
            layers[path] = kind(weight, bias, scales[weight], 1.0 if bias is None else scales[bias], shape)
        # A parameter that two different layers share does not have a single factor.
        owned = [name for layer in set(layers.values()) for name in layer.parameters]
        return cls(network, layers).without({name for name in owned if owned.count(name) > 1})

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters of these layers."""
        return list(dict.fromkeys(name for layer in self.layers.values() for name in layer.parameters))

    def without(self, names: set[str]) -> "LayerFactors":
        """Leave out the layers that own a parameter in `names`."""
        layers = {path: layer for path, layer in self.layers.items() if names.isdisjoint(layer.parameters)}
        return LayerFactors(self.network, layers)

    def at(self, x: Tensor, outputs: int) -> dict[Layer, Factor]:
        """The factors at the points x; differentiable in x and in the network's settings if they require gradients."""
        create_graph = self.network.differentiable(x)
        with torch.enable_grad():
            out, calls = self._record(x)
            if any(a._version != version for _, a, version, _ in calls):
                out, calls = self._record(x, copy=True)  # a layer's input was overwritten in place after its call
            if not calls:
                return {}
            probes = [probe for *_, probe in calls]
            # A network may read only the weights of its layers and ignore their outputs.
            gradients = [[torch.zeros_like(probe) for probe in probes]] * outputs if not out.requires_grad else [
                torch.autograd.grad(out[:, c].sum(), probes, retain_graph=create_graph or c + 1 < outputs,
                                    create_graph=create_graph, materialize_grads=True)
                for c in range(outputs)
            ]  # fmt: skip
        modules = dict(self.network.module.named_modules())
        uses: dict[Layer, list[Factor]] = {}
        with torch.set_grad_enabled(create_graph):
            for (path, a, *_), *g in zip(calls, *gradients, strict=True):
                layer = self.layers[path]
                uses.setdefault(layer, []).append(layer.factor(modules[path], a if create_graph else a.detach(), g, len(x)))
            return {layer: _combined(found) for layer, found in uses.items()}

    def recording_numbers(self, point: Tensor, outputs: int) -> int:
        """Numbers in memory per point while factors are recorded: activations, patches, and a gradient per output."""
        _, calls = self._record(point)
        positions = [probe.numel() // self.layers[path].shape[0] * self.layers[path].shape[1:].numel()
                     for path, *_, probe in calls]  # fmt: skip
        return sum(positions) + sum(3 * a.numel() + (outputs + 3) * probe.numel() for _, a, _, probe in calls)

    def _record(self, x: Tensor, copy: bool = False) -> tuple[Tensor, list[Call]]:
        """Run the network forward; return its output and the calls of its factored layers."""
        calls: list[Call] = []
        with self.network.lock:  # so that other threads do not record into this list
            modules = dict(self.network.module.named_modules())
            handles = [modules[path].register_forward_hook(partial(_record_call, calls, path, copy)) for path in self.layers]
            try:
                return self.network({}, x), calls
            finally:
                for handle in handles:
                    handle.remove()


def _record_call(
    calls: list[Call], path: str, copy: bool, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor
) -> Tensor:
    """A forward hook: record the layer's input, and add a zero to its output; its gradient is the output's gradient."""
    probe = torch.zeros((), dtype=output.dtype, device=output.device, requires_grad=True).expand(output.shape)
    a = inputs[0].clone() if copy else inputs[0]
    calls.append((path, a, a._version, probe))
    return output + probe


def _combined(uses: list[Factor]) -> Factor:
    """Combine all uses of a layer into one factor: further uses are further positions."""
    first = uses[0]
    if isinstance(first, Direct):
        total = first.j
        for use in uses[1:]:
            assert isinstance(use, Direct)
            total = total + use.j
        return Direct(total)
    if isinstance(first, Lookup):
        tables = [use for use in uses if isinstance(use, Lookup)]
        return Lookup(torch.cat([use.g for use in tables], 2), torch.cat([use.index for use in tables], 1), first.size)
    outers = [use for use in uses if isinstance(use, Outer)]
    if len(outers) == 1:
        return outers[0].smaller
    return Outer(torch.cat([use.g for use in outers], 2), torch.cat([use.a for use in outers], 1)).smaller
