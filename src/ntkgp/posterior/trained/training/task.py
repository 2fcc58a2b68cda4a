"""What is trained: copies of the network, each with a target, as one stacked batch.

Each copy s minimises the paper's regularised loss (Lemma 2.1), with θ = θ0 + a Δ_s and prior standard deviation a,

    L_s = (1/N) Σ_n w_n (ε t_sn + f(x_n; θ0) − f(x_n; θ))² + β ‖Δ_s‖²,   β = σ²/N,

and answers (f(x′; θ) − f(x′; θ0))/ε. The scale ε is the paper's 1, or smaller: the answer is linear in its target, so a small
ε keeps the network as close to its tangent as wished, at any width. w_n = σ²/σ_n² (1 when the noise is the same everywhere).
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vmap

from ntkgp.tangent.layout import ParameterLayout
from ntkgp.tangent.network import PureNetwork


@dataclass(frozen=True)
class Copies:
    """How a flat stack of displacements Δ, one row per copy, becomes networks: θ = θ0 + a Δ."""

    network: PureNetwork
    layout: ParameterLayout
    scales: dict[str, float]

    def change(self, deltas: Float[Tensor, "S P"], x: Tensor) -> Float[Tensor, "S N C"]:
        """f(x; θ0 + a Δ_s) − f(x; θ0) for every copy."""
        anchor = self.network.anchor
        parts = self.layout.split(deltas)
        params = {name: torch.add(anchor[name], part, alpha=self.scales[name]) for name, part in parts.items()}
        if self.network.transformable:
            return vmap(self.network, in_dims=(0, None))(params, x) - self.network.initial(x)
        each = [self.network({name: part[s] for name, part in params.items()}, x) for s in range(len(deltas))]
        return torch.stack(each) - self.network.initial(x)


@dataclass(frozen=True)
class Metric:
    """The head of the Jacobian's SVD (whitened), which tells gradient descent the shape of its loss."""

    v: Float[Tensor, "P K"]
    s: Float[Tensor, "K"]
    residuals: Float[Tensor, "K"]


@dataclass(frozen=True)
class TrainingTask:
    """What to train: S targets on the same points, from the same initial network."""

    copies: Copies
    x: Tensor
    targets: Float[Tensor, "S N C"]
    weights: Float[Tensor, "N C"]
    beta: float
    metric: Metric
    amplitude: float  # prior standard deviation of the outputs, what a signal is measured by
    roles: list[str]  # "mean" or "covariance", one per target: the paper trains the two at different rates
    start: Float[Tensor, "S P"] | None = None  # displacements to start from, for targets of scale one; None for θ0

    def fit_error(self, change: Float[Tensor, "S N C"]) -> Float[Tensor, "S"]:
        """The data term of each copy's loss."""
        return (self.weights * (self.targets - change).square()).sum(dim=(1, 2)) / len(self.x)

    def loss(self, deltas: Float[Tensor, "S P"]) -> Float[Tensor, "S"]:
        """The paper's regularised loss of each copy."""
        return self.fit_error(self.copies.change(deltas, self.x)) + self.beta * squares(deltas)

    def scaled(self, scale: Float[Tensor, "S"]) -> "TrainingTask":
        """The same with targets ε t."""
        return replace(self, targets=scale.view(-1, 1, 1) * self.targets)

    def subset(self, keep: Tensor) -> "TrainingTask":
        """The same for fewer copies."""
        roles = [role for role, stays in zip(self.roles, keep.tolist(), strict=True) if stays]
        return replace(self, targets=self.targets[keep], roles=roles, start=None if self.start is None else self.start[keep])

    def initial(self, scale: Float[Tensor, "S"]) -> Float[Tensor, "S P"]:
        """Where the copies start: at θ0, or where they were told to if that is nearer to their targets."""
        if self.start is None:
            return self.zeros()
        start = self.start * scale.unsqueeze(1)
        with torch.no_grad():
            better = self.loss(start) < self.fit_error(torch.zeros_like(self.targets))
        return start * better.unsqueeze(1)

    def zeros(self) -> Float[Tensor, "S P"]:
        """All copies at θ0."""
        return self.targets.new_zeros(len(self.targets), self.copies.layout.size)


@dataclass(frozen=True)
class TrainedWeights:
    """Trained copies: the displacement Δ of each from θ0, and what training reached."""

    deltas: Float[Tensor, "S P"]
    scale: Float[Tensor, "S"]  # ε of each copy
    steps: list[int]  # taken by each copy
    converged: list[bool]
    accuracy: list[float]  # what each copy reached of what its trainer asks for
    losses: list[list[float]]  # of all copies, at every 10th step
    seconds: float


def squares(stack: Float[Tensor, "S P"]) -> Float[Tensor, "S"]:
    """The squared norm of each row."""
    # A norm makes one pass without an intermediate of the stack's size.
    return torch.linalg.vector_norm(stack, dim=1).square()
