"""The kernels of an infinite network, layer by layer, between two sets of points.

With K the covariance of a layer's values and Θ the tangent kernel so far, a dense layer with weights N(0, s²), bias N(0, t²)
and output scale g does ``Θ ← g²s²·Θ + v·(g²·K + 1)`` and ``K ← g²s²·K + t²``, where v is the prior variance of its tangent; an
activation does ``Θ ← Θ·E[φ′(u) φ′(u′)]`` and ``K ← E[φ(u) φ(u′)]``, (u, u′) ~ N(0, K). Everything is elementwise, so a pair of
points costs the same whatever the others are.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ntkgp._system.locks import ForkLock

_swapping = ForkLock(order=4)  # functional_call swaps tensors inside the module while it runs; tiles run in threads
Values = Mapping[str, Tensor]  # parameters and buffers of the network, by name
Priors = Mapping[str, tuple[str, Tensor | float]]  # by name of a parameter: the group its share of Θ goes to, and its variance


@dataclass(frozen=True)
class Inputs:
    """Points before the first dense layer."""

    left: Tensor
    right: Tensor | None  # None: the same points as left, each only beside itself


@dataclass(frozen=True)
class Covariances:
    """The values of one layer at two sets of points: variances at both, covariances between them, and the tangent kernel."""

    left: Tensor  # (n, 1)
    right: Tensor  # (1, m)
    cross: Tensor  # (n, m); all three have shape (n,) for the diagonal
    tangent: dict[str, Tensor] = field(default_factory=dict)  # by group of parameters; a missing group is zero

    def plus(self, other: "Covariances") -> "Covariances":
        """Of the sum of two independent layers."""
        tangent = dict(self.tangent)
        for group, share in other.tangent.items():
            tangent[group] = tangent[group] + share if group in tangent else share
        return Covariances(self.left + other.left, self.right + other.right, self.cross + other.cross, tangent)


State = Inputs | Covariances


class Step(ABC):
    """One layer of the recursion."""

    @abstractmethod
    def __call__(self, state: State, values: Values, priors: Priors) -> State:
        """What the layer makes of the layer before."""


@dataclass(frozen=True)
class Chain(Step):
    """One step after the other."""

    steps: list[Step]

    def __call__(self, state: State, values: Values, priors: Priors) -> State:
        """All steps in their order."""
        for step in self.steps:
            state = step(state, values, priors)
        return state


@dataclass(frozen=True)
class Preparation(Step):
    """A layer before the first dense one, such as input scales: an ordinary module."""

    module: nn.Module
    path: str

    def __call__(self, state: State, values: Values, priors: Priors) -> State:
        """The module at both sets of points."""
        assert isinstance(state, Inputs)
        prefix = f"{self.path}." if self.path else ""
        own = {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}

        def at(x: Tensor) -> Tensor:
            return functional_call(self.module, own, (x,)) if own else self.module(x)

        with _swapping:
            return Inputs(at(state.left), None if state.right is None else at(state.right))


@dataclass(frozen=True)
class Dense(Step):
    """A dense layer with random weights."""

    weight_std: str
    bias_std: str | None
    squared_scale: float
    in_features: float

    def __call__(self, state: State, values: Values, priors: Priors) -> State:
        """The formulas at the top of this file."""
        before = products(state, self.in_features) if isinstance(state, Inputs) else state
        gain = self.squared_scale * values[self.weight_std].square()
        bias = 0.0 if self.bias_std is None else values[self.bias_std].square()
        tangent = {group: share * gain for group, share in before.tangent.items()}
        features = {self.weight_std: self.squared_scale * before.cross, self.bias_std: torch.ones_like(before.cross)}
        for name, feature in features.items():
            if name is not None and name in priors:
                group, variance = priors[name]
                share = variance * feature
                tangent[group] = tangent[group] + share if group in tangent else share
        return Covariances(before.left * gain + bias, before.right * gain + bias, before.cross * gain + bias, tangent)


@dataclass(frozen=True)
class Activation(Step):
    """An elementwise function."""

    moments: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

    def __call__(self, state: State, values: Values, priors: Priors) -> State:
        """Its moments; those at single points are the same functions at coinciding points."""
        assert isinstance(state, Covariances)
        cross, slope = self.moments(state.left, state.right, state.cross)
        tangent = {group: share * slope for group, share in state.tangent.items()}
        if state.cross.ndim == 1:
            return Covariances(cross, cross, cross, tangent)
        left, right = (self.moments(part, part, part)[0] for part in (state.left, state.right))
        return Covariances(left, right, cross, tangent)


@dataclass(frozen=True)
class Sum(Step):
    """Several networks with separate weights, added."""

    steps: list[Step]

    def __call__(self, state: State, values: Values, priors: Priors) -> State:
        """Covariances and tangent kernels add."""
        found = [step(state, values, priors) for step in self.steps]
        total = found[0]
        for one in found[1:]:
            assert isinstance(total, Covariances)
            assert isinstance(one, Covariances)
            total = total.plus(one)
        return total


@dataclass(frozen=True)
class Skip(Step):
    """x + block(x)."""

    block: Step

    def __call__(self, state: State, values: Values, priors: Priors) -> State:
        """The block ends in its own random weights, so its values are independent of x."""
        after = self.block(state, values, priors)
        assert isinstance(state, Covariances)
        assert isinstance(after, Covariances)
        return state.plus(after)


def products(inputs: Inputs, features: float) -> Covariances:
    """x·x′/D."""
    left, right = inputs.left, inputs.right
    if left.ndim != 2 or left.shape[1] != features:
        raise ValueError(f"the first dense layer expects points of {features} numbers, got shape {tuple(left.shape)}")
    if right is None:
        square = left.square().sum(dim=1) / features
        return Covariances(square, square, square)
    one, other = left.square().sum(dim=1, keepdim=True) / features, right.square().sum(dim=1) / features
    return Covariances(one, other.unsqueeze(0), left @ right.T / features)
