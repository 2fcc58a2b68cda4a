"""The training task: copies of the network, one per target, as one stacked batch.

Each copy s minimises the paper's regularised loss (Lemma 2.1), with θ = θ0 + a Δ_s and prior standard deviation a,

    L_s = (1/N) Σ_n w_n (ε t_sn + f(x_n; θ0) − f(x_n; θ))² + β ‖Δ_s‖²,   β = σ²/N,

and answers (f(x′; θ) − f(x′; θ0))/ε. In the paper the scale ε is 1; it may be smaller. The answer is linear in its target,
so with a small ε the network stays as close to its tangent as you like, at any width. w_n = σ²/σ_n² (1 if the noise is the same
everywhere).
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vmap

from ntkgp._system.memory import ran_out
from ntkgp.tangent.layout import ParameterLayout
from ntkgp.tangent.network import PureNetwork


@dataclass(frozen=True)
class Copies:
    """Copies of the network from a flat stack of displacements Δ, one row per copy: θ = θ0 + a Δ."""

    network: PureNetwork
    layout: ParameterLayout
    scales: dict[str, float]

    def change(self, deltas: Float[Tensor, "S P"], x: Tensor) -> Float[Tensor, "S N C"]:
        """Return f(x; θ0 + a Δ_s) − f(x; θ0) for every copy."""
        anchor = self.network.anchor
        parts = self.layout.split(deltas)
        params = {name: torch.add(anchor[name], part, alpha=self.scales[name]) for name, part in parts.items()}
        if self.network.transformable:
            try:
                return vmap(self.network, in_dims=(0, None))(params, x) - self.network.initial(x)
            except RuntimeError as error:  # no batching rule for an operation: one copy at a time from now on
                if ran_out(error):
                    raise
                self.network.transformable = False
        each = [self.network({name: part[s] for name, part in params.items()}, x) for s in range(len(deltas))]
        return torch.stack(each) - self.network.initial(x)


@dataclass(frozen=True)
class Metric:
    """The head of the whitened Jacobian's SVD: directions and curvatures of the loss for gradient descent."""

    v: Float[Tensor, "P K"]
    s: Float[Tensor, "K"]
    residuals: Float[Tensor, "K"]


@dataclass(frozen=True)
class TrainingTask:
    """S targets on the same points, one copy of the initial network for each."""

    copies: Copies
    x: Tensor
    targets: Float[Tensor, "S N C"]
    weights: Float[Tensor, "N C"]
    beta: float
    metric: Metric
    amplitude: float  # prior standard deviation of the outputs, the unit of a trainer's signal
    roles: list[str]  # "mean" or "covariance", one per target: the paper trains the two at different rates
    start: Float[Tensor, "S P"] | None = None  # displacements to start from, for unscaled targets; None for θ0

    def fit_error(self, change: Float[Tensor, "S N C"]) -> Float[Tensor, "S"]:
        """Return the data term of each copy's loss."""
        return (self.weights * (self.targets - change).square()).sum(dim=(1, 2)) / len(self.x)

    def loss(self, deltas: Float[Tensor, "S P"]) -> Float[Tensor, "S"]:
        """Return the paper's regularised loss of each copy."""
        return self.fit_error(self.copies.change(deltas, self.x)) + self.beta * squares(deltas)

    def scaled(self, scale: Float[Tensor, "S"]) -> "TrainingTask":
        """Return the task with targets ε t."""
        return replace(self, targets=scale.view(-1, 1, 1) * self.targets)

    def subset(self, chosen: Tensor) -> "TrainingTask":
        """Return the task for the copies where `chosen` is true."""
        roles = [role for role, stays in zip(self.roles, chosen.tolist(), strict=True) if stays]
        return replace(
            self, targets=self.targets[chosen], roles=roles, start=None if self.start is None else self.start[chosen]
        )

    def initial(self, scale: Float[Tensor, "S"]) -> Float[Tensor, "S P"]:
        """Return the initial displacements: `start` for each copy whose loss is lower there, else zero (θ0)."""
        if self.start is None:
            return self.zeros()
        start = self.start * scale.unsqueeze(1)
        with torch.no_grad():
            better = self.loss(start) < self.fit_error(torch.zeros_like(self.targets))
        return start * better.unsqueeze(1)

    def zeros(self) -> Float[Tensor, "S P"]:
        """Return zero displacements: all copies at θ0."""
        return self.targets.new_zeros(len(self.targets), self.copies.layout.size)


@dataclass(frozen=True)
class TrainedWeights:
    """Trained copies: their displacements Δ from θ0, and a record of the training."""

    deltas: Float[Tensor, "S P"]
    scale: Float[Tensor, "S"]  # ε of each copy
    steps: list[int]  # taken by each copy
    converged: list[bool]
    accuracy: list[float]  # reached by each copy, as its trainer measures it
    losses: list[list[float]]  # of all copies, at every 10th step
    seconds: float


def squares(stack: Float[Tensor, "S P"]) -> Float[Tensor, "S"]:
    """Return the squared norm of each row."""
    # vector_norm needs no temporary of the stack's size.
    return torch.linalg.vector_norm(stack, dim=1).square()
