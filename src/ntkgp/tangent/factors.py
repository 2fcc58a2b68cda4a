"""Layer factors: at θ0 a layer's Jacobian is (output gradient) ⊗ (layer input).

One forward and C backward passes give, for each linear layer, its input a (times the layer's gain, with a one appended for
the bias) and the gradient g of each network output by the layer's output. They say all there is to know of J: see
:mod:`ntkgp.tangent.factored` for the products. Layers that see several positions a sample (sequences, weights used
twice) sum over positions t.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkgp.networks import NTKLinear
from ntkgp.tangent.functional import PureNetwork

# The layers known here, and the gain each puts on its input.
RULES: dict[type[nn.Module], Callable[..., float]] = {
    nn.Linear: lambda layer: 1.0,
    NTKLinear: lambda layer: layer.gain,
}


@dataclass(frozen=True)
class Outer:
    """The Jacobian Σ_t g_t ⊗ a_t of one weight matrix (its bias the last column) at n points."""

    g: Float[Tensor, "n C T o"]
    a: Float[Tensor, "n T i"]

    @property
    def rows(self) -> int:
        """Rows of J: points times outputs."""
        return self.g.shape[0] * self.g.shape[1]

    @property
    def width(self) -> int:
        """Numbers per point and column in the smaller intermediate of a product."""
        _, C, T, o = self.g.shape
        return T * min(o, C * self.a.shape[-1])

    @property
    def _gradient_first(self) -> bool:
        """Contract with g before a when that leaves the smaller intermediate; the operation count is the same."""
        return self.g.shape[1] * self.a.shape[-1] < self.g.shape[-1]

    def matmat(self, v: Float[Tensor, "S o i"]) -> Float[Tensor, "nC S"]:
        """J v."""
        if self._gradient_first:
            out = torch.einsum("nctsi,nti->ncs", torch.einsum("ncto,soi->nctsi", self.g, v), self.a)
        else:
            out = torch.einsum("ncto,ntso->ncs", self.g, torch.einsum("nti,soi->ntso", self.a, v))
        return out.flatten(0, 1)

    def rmatmat(self, u: Float[Tensor, "nC S"]) -> Float[Tensor, "S o i"]:
        """Jᵀ u."""
        u = u.unflatten(0, self.g.shape[:2])
        if self._gradient_first:
            return torch.einsum("ncto,nctsi->soi", self.g, torch.einsum("ncs,nti->nctsi", u, self.a))
        return torch.einsum("ntso,nti->soi", torch.einsum("ncs,ncto->ntso", u, self.g), self.a)

    def kernel(self, other: "Outer") -> Float[Tensor, "nC mC"]:
        """J J′ᵀ: two Gram matrices and a Hadamard product when each sample has one position."""
        n, C, T, o = self.g.shape
        m, T2, i = other.a.shape
        if T == T2 == 1:
            gram = (self.g.reshape(n * C, o) @ other.g.reshape(m * C, o).T).view(n, C, m, C)
            out = gram * (self.a[:, 0] @ other.a[:, 0].T).view(n, 1, m, 1)
        elif T * T2 * (C * C * o + i) < C * C * o * i:
            grams = torch.einsum("ncto,mdso->nctmds", self.g, other.g)
            out = torch.einsum("nctmds,ntms->ncmd", grams, torch.einsum("nti,msi->ntms", self.a, other.a))
        else:
            return self.dense() @ other.dense().T
        return out.reshape(n * C, m * C)

    def diag(self) -> Float[Tensor, "nC"]:
        """Squared norms of the rows of J."""
        if self.a.shape[1] == 1:
            return (self.g.square().sum(dim=(2, 3)) * self.a.square().sum(dim=(1, 2)).unsqueeze(1)).flatten()
        return self.dense().square().sum(dim=1)

    def dense(self) -> Float[Tensor, "nC oi"]:
        """The entries of J."""
        return torch.einsum("ncto,nti->ncoi", self.g, self.a).flatten(2).flatten(0, 1)


@dataclass(frozen=True)
class Layer:
    """A factored layer: the names of its parameters and what scales each (layer gain times prior standard deviation)."""

    weight: str
    bias: str | None
    weight_scale: float
    bias_scale: float

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters the layer owns."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def pack(self, parts: dict[str, Tensor]) -> Float[Tensor, "*S o i"]:
        """Weight and bias as one matrix: the bias is the weight of one more input."""
        weight = parts[self.weight]
        return weight if self.bias is None else torch.cat([weight, parts[self.bias].unsqueeze(-1)], dim=-1)

    def unpack(self, packed: Float[Tensor, "*S o i"]) -> dict[str, Tensor]:
        """The inverse of :meth:`pack`."""
        return {self.weight: packed} if self.bias is None else {self.weight: packed[..., :-1], self.bias: packed[..., -1]}

    def inputs(self, a: Float[Tensor, "n T i"]) -> Float[Tensor, "n T i2"]:
        """Layer inputs with their scale, and the bias's constant input."""
        a = a * self.weight_scale
        return a if self.bias is None else torch.cat([a, a.new_full((*a.shape[:-1], 1), self.bias_scale)], dim=-1)


class LayerFactors:
    """The factored layers of a network, and their factors at any points."""

    def __init__(self, network: PureNetwork, layers: dict[str, Layer]):
        self.network, self.layers = network, layers

    @classmethod
    def of(cls, network: PureNetwork, scales: dict[str, float]) -> "LayerFactors":
        """Every layer of the network that has a rule; `scales` holds the prior standard deviation of each parameter."""
        names = {id(p): name for name, p in network.module.named_parameters() if name in network.anchor}
        layers = {}
        for path, module in network.module.named_modules():
            rule = RULES.get(type(module))
            weight = names.get(id(getattr(module, "weight", None)))
            if rule is None or weight is None:
                continue
            bias = names.get(id(getattr(module, "bias", None)))
            layers[path] = Layer(weight, bias, scales[weight] * rule(module), 1.0 if bias is None else scales[bias])
        # A parameter of two different layers is not one sum of outer products.
        owned = [name for layer in set(layers.values()) for name in layer.parameters]
        return cls(network, layers).without({name for name in owned if owned.count(name) > 1})

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters the layers own."""
        return list(dict.fromkeys(name for layer in self.layers.values() for name in layer.parameters))

    def without(self, names: set[str]) -> "LayerFactors":
        """The same, less the layers that own a parameter in `names`."""
        kept = {path: layer for path, layer in self.layers.items() if names.isdisjoint(layer.parameters)}
        return LayerFactors(self.network, kept)

    def at(self, x: Tensor, outputs: int) -> dict[Layer, Outer]:
        """The factors at the points x, one forward and C backward passes; differentiable in x if x asks for gradients."""
        create_graph = x.requires_grad and torch.is_grad_enabled()
        with torch.enable_grad():
            out, calls = self._record(x)
            probes = [probe for *_, probe in calls]
            gradients = [
                torch.autograd.grad(out[:, c].sum(), probes, retain_graph=create_graph or c + 1 < outputs,
                                    create_graph=create_graph, materialize_grads=True)
                for c in range(outputs)
            ]  # fmt: skip
        found: dict[Layer, list[Outer]] = {}
        for (layer, a, _), *g in zip(calls, *gradients, strict=True):
            a = layer.inputs(_by_sample(a, len(x)))
            outer = Outer(torch.stack([_by_sample(g_c, len(x)) for g_c in g], dim=1), a)
            found.setdefault(layer, []).append(outer if create_graph else Outer(outer.g.detach(), a.detach()))
        return {layer: uses[0] if len(uses) == 1 else _used_repeatedly(uses) for layer, uses in found.items()}

    def _record(self, x: Tensor) -> tuple[Tensor, list[tuple[Layer, Tensor, Tensor]]]:
        """One forward pass: each call of a factored layer, with its input and a zero added to its output."""
        calls: list[tuple[Layer, Tensor, Tensor]] = []

        def hook(layer: Layer) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
            def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
                probe = torch.zeros_like(output, requires_grad=True)
                # The clone keeps the input safe from modules that overwrite their activations in place.
                calls.append((layer, inputs[0].clone(), probe))
                return output + probe

            return record

        with self.network.lock:  # other threads must not record into this list
            modules = dict(self.network.module.named_modules())
            handles = [modules[path].register_forward_hook(hook(layer)) for path, layer in self.layers.items()]
            try:
                return self.network({}, x), calls
            finally:
                for handle in handles:
                    handle.remove()


def _by_sample(t: Tensor, samples: int) -> Float[Tensor, "n T features"]:
    """All positions of a sample in one axis."""
    return t.reshape(samples, -1, t.shape[-1])


def _used_repeatedly(uses: list[Outer]) -> Outer:
    """A layer called several times: its calls are further positions."""
    return Outer(torch.cat([use.g for use in uses], dim=2), torch.cat([use.a for use in uses], dim=1))
