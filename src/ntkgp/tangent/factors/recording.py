"""Records layer factors in one forward pass and C backward passes, and checks at every point that the layer rules hold.

A rule says: row r of a layer's output comes from row r of its input, and belongs to one point, in the order of the batch; and
no other part of the network uses the layer's weights. A network may break it: by working on transposed, sorted, routed or
repeated points, or by using a weight directly. Where autograd's graph does not prove the rule (:mod:`.row_by_row`), the factors
meet autodiff at all points together: for random weights u of the outputs, Jᵀu by the factors must be the gradient of ⟨u, f⟩.
"""

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp._system.memory import ran_out
from ntkgp.tangent.factors.direct import Direct
from ntkgp.tangent.factors.factor import Factor
from ntkgp.tangent.factors.layers import Layer, layer_kind
from ntkgp.tangent.factors.lookup import Lookup
from ntkgp.tangent.factors.outer import Outer
from ntkgp.tangent.factors.row_by_row import row_by_row
from ntkgp.tangent.network import PureNetwork, random_weights, weighted_gradients

ROUNDING = 1e3  # allowed difference of Jᵀu in units of eps, relative to the size of a sum of rows of J with random signs
DISAGREES = "its rule disagrees with autodiff: its rows are not the points in order, or its weights are also used elsewhere"
NOT_IN_ORDER = "the rows of its input are not the points of the batch"
REPLACED = "its weights are replaced while the network runs"
NOT_RECORDED = "it is not called with one positional tensor"
OTHER_DTYPE = "it computes in another dtype than that of its weights"
NOT_CALLED = "the network does not call it at some points"


@dataclass(frozen=True)
class Call:
    """One call of a layer."""

    path: str
    a: Tensor | str  # its input, or the reason why its rule does not hold
    version: int  # of the input: counts the changes made in place
    probe: Tensor  # the zero added to its output; its gradient is the output's gradient


@dataclass(frozen=True)
class Recording:
    """The factors of all layers whose rule holds at some points, the reason for each other layer, and the network's output."""

    factors: dict[Layer, Factor]
    broken: dict[Layer, str]
    output: Float[Tensor, "n C"]


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

    def at(self, x: Tensor, outputs: int, check: bool = True) -> Recording:
        """The factors at the points x; differentiable in x and in the network's settings if they require gradients.

        `check=False` skips the backward pass that checks the rules, for points that were checked before.
        """
        layers = dict.fromkeys(self.layers.values())
        if not layers:
            with torch.no_grad():
                return Recording({}, {}, self.network({}, x))
        try:
            return self._recorded(x, outputs, check)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:  # a hook disturbs the network, as inside vmap
            if ran_out(error):
                raise
            with torch.no_grad():
                output = self.network({}, x)  # raises the network's own error if it was not the hook's
            reason = f"its calls cannot be recorded ({str(error).splitlines()[0]})"
            return Recording({}, dict.fromkeys(layers, reason), output)

    def _recorded(self, x: Tensor, outputs: int, check: bool) -> Recording:
        """Record the layers at x; with `check`, find those whose rule does not hold."""
        create_graph = self.network.differentiable(x)
        leaves = {name: self.network.anchor[name].detach().requires_grad_() for name in self.parameters}
        with torch.enable_grad():
            out, calls = self._record(x, leaves)
            if any(isinstance(call.a, Tensor) and call.a._version != call.version for call in calls):
                out, calls = self._record(x, leaves, copy=True)  # a layer's input was overwritten in place after its call
            probes = [call.probe for call in calls]
            gradients = [[torch.zeros_like(probe) for probe in probes]] * outputs
            check = check and out.requires_grad and not row_by_row(out, [*probes, x])
            if out.requires_grad and probes:  # a network may ignore the outputs of its layers, or compute under no_grad
                gradients = [torch.autograd.grad(out[:, c].sum(), probes, create_graph=create_graph, materialize_grads=True,
                                                 retain_graph=create_graph or c + 1 < outputs)
                             for c in range(outputs)]  # fmt: skip
        called = {self.layers[call.path] for call in calls}
        broken = {layer: NOT_CALLED for layer in self.layers.values() if layer not in called}
        modules, uses = dict(self.network.module.named_modules()), dict[Layer, list[Factor]]()
        with torch.set_grad_enabled(create_graph):
            for call, *g in zip(calls, *gradients, strict=True):
                layer = self.layers[call.path]
                if layer in broken:
                    continue
                if isinstance(call.a, str):
                    broken[layer] = call.a
                    continue
                if g[0].numel() % len(x):
                    broken[layer] = NOT_IN_ORDER
                    continue
                found = layer.factor(modules[call.path], call.a if create_graph else call.a.detach(), g, len(x))
                if all(len(tensor) == len(x) for tensor in found.tensors.values()):
                    uses.setdefault(layer, []).append(found)
                else:
                    broken[layer] = NOT_IN_ORDER
            factors = {layer: _combined(found) for layer, found in uses.items() if layer not in broken}
        if check:
            u = random_weights(out)
            wrong = disagreeing(factors, weighted_gradients(self.network, self.parameters, x, u), u)
            broken |= dict.fromkeys(wrong, DISAGREES)
            factors = {layer: factor for layer, factor in factors.items() if layer not in broken}
        return Recording(factors, broken, out.detach())

    def recording_numbers(self, point: Tensor, outputs: int) -> int:
        """Numbers in memory per point while factors are recorded: activations, patches, and a gradient per output."""
        try:
            _, calls = self._record(point, {name: self.network.anchor[name] for name in self.parameters})
        except (RuntimeError, TypeError, ValueError, IndexError):  # its calls cannot be recorded: no factors, no memory
            return 0
        positions = [call.probe.numel() // self.layers[call.path].shape[0] * self.layers[call.path].shape[1:].numel()
                     for call in calls]  # fmt: skip
        inputs = [3 * call.a.numel() for call in calls if isinstance(call.a, Tensor)]
        return sum(positions) + sum(inputs) + sum((outputs + 4) * call.probe.numel() for call in calls)

    def _record(self, x: Tensor, leaves: dict[str, Tensor], copy: bool = False) -> tuple[Tensor, list[Call]]:
        """Run the network forward; return its output and the calls of its factored layers.

        `leaves` has all parameters of the layers. The layers themselves compute with θ0, so that the graph shows every use of a
        weight outside of its layer.
        """
        calls: list[Call] = []
        with self.network.alone():  # so that nobody else records into this list
            modules, handles = dict(self.network.module.named_modules()), []
            try:
                for path, layer in self.layers.items():
                    hook = partial(_to_anchor, calls, path, layer, leaves, self.network.anchor)
                    handles.append(modules[path].register_forward_pre_hook(hook))
                    handles.append(modules[path].register_forward_hook(partial(_record_call, calls, path, copy)))
                    handles.append(modules[path].register_forward_hook(partial(_exchange, layer, leaves)))
                return self.network.run(leaves, x), calls
            finally:
                for handle in handles:
                    handle.remove()


def _to_anchor(
    calls: list[Call],
    path: str,
    layer: Layer,
    leaves: dict[str, Tensor],
    anchor: dict[str, Tensor],
    module: nn.Module,
    *_: object,
) -> None:
    """A hook before a layer: let it compute with θ0, unless the network has given it weights of its own."""
    if module._parameters["weight"] is leaves[layer.weight] and (
        layer.bias is None or module._parameters["bias"] is leaves[layer.bias]
    ):
        _exchange(layer, anchor, module)
    else:
        calls.append(Call(path, REPLACED, 0, torch.zeros_like(leaves[layer.weight][:0], requires_grad=True)))


def _exchange(layer: Layer, values: dict[str, Tensor], module: nn.Module, *_: object) -> None:
    """A hook: give the layer's parameters other values; ``functional_call`` puts the module's own back at its end."""
    for attribute, name in (("weight", layer.weight), ("bias", layer.bias)):
        if name is not None:
            module._parameters[attribute] = values[name]  # pyright: ignore[reportArgumentType]


def _record_call(
    calls: list[Call], path: str, copy: bool, module: nn.Module, inputs: tuple[object, ...], output: Tensor
) -> Tensor:
    """A forward hook: record the layer's input, and add a zero to its output; its gradient is the output's gradient."""
    probe = torch.zeros((), dtype=output.dtype, device=output.device, requires_grad=True).expand(output.shape)
    a = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], Tensor) else NOT_RECORDED
    a = OTHER_DTYPE if output.dtype != module.weight.dtype else a.clone() if copy and isinstance(a, Tensor) else a
    calls.append(Call(path, a, a._version if isinstance(a, Tensor) else 0, probe))
    return output + probe


@torch.no_grad()
def disagreeing(factors: dict[Layer, Factor], truth: dict[str, Tensor], u: Float[Tensor, "n C"]) -> list[Layer]:
    """The layers for which Jᵀu by the factor is not the gradient `truth`, which is by parameter, up to rounding."""
    wrong = []
    for layer, factor in factors.items():
        expected = layer.pack({name: truth[name].unsqueeze(0) * layer.scale(name) for name in layer.parameters})
        found = torch.zeros_like(expected)
        factor.accumulate(u.reshape(-1, 1), found)
        size = (factor.diag() * u.flatten().square()).sum().sqrt()
        if not bool((found - expected).norm() <= ROUNDING * torch.finfo(u.dtype).eps * size):
            wrong.append(layer)
    return wrong


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
