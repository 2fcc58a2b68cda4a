"""Two ways up the likelihood: Adam, for networks with weights, and L-BFGS, for networks of infinite width."""

import contextlib
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from ntkgp._system.progress import Bar
from ntkgp.tuning.likelihood import NOISE, PRIOR, Likelihood, Logs

ADAM_RATE = 0.2  # learning rate, in units of the logarithm
HISTORY = 20  # pairs of steps and gradients from which L-BFGS knows the curvature
SMALL_GAIN = 1e-3  # nats; L-BFGS stops when a step gains less
UNDEFINED = 1e10  # minus the objective where A cannot be factorised: a finite number from which the line search returns


@dataclass(frozen=True)
class Objective:
    """The log marginal likelihood plus a Gaussian log prior on the logarithms, inside bounds.

    Args:
        likelihood: the likelihood.
        centre: where the prior has its mean.
        bounds: lowest and highest values, by name.
        hyper_prior: standard deviation of the prior; twice as much for prior variances, none for noise; None for no prior.
    """

    likelihood: Likelihood
    centre: Logs
    bounds: dict[str, tuple[Tensor, Tensor]]
    hyper_prior: float | None

    def gradient(self, leaves: Logs) -> float:
        """Return the value and add its gradient to the leaves; minus infinity, and no gradient, if A cannot be factorised."""
        value = self.likelihood.gradient(leaves)
        return value if value == -math.inf else value + self._prior(leaves)

    def clamped(self, logs: Logs) -> Logs:
        """The nearest logarithms inside the bounds."""
        return {name: log.detach().clamp(*self.bounds[name]) for name, log in logs.items()}

    def _prior(self, leaves: Logs) -> float:
        total = 0.0
        for name, leaf in leaves.items():
            if name == NOISE or self.hyper_prior is None:
                continue
            width = self.hyper_prior * (2 if name == PRIOR else 1)
            away = (leaf.detach() - self.centre[name]) / width
            total -= 0.5 * float(away.square().sum())
            leaf.grad = -away / width if leaf.grad is None else leaf.grad - away / width
        return total


class Climb(ABC):
    """A way to maximise an objective."""

    @abstractmethod
    def run(self, objective: Objective, logs: Logs, steps: int, settle: bool, bar: Bar) -> tuple[float, Logs]:
        """Return the best value and point of at most `steps` evaluations; with `settle` they shall end at a maximum."""


class Adam(Climb):
    """Adam on the logarithms; with `settle` the rate falls to a tenth.

    The likelihood of a finite network is rugged in the input scales: the momentum of Adam crosses ridges at which quasi-Newton
    line searches stop.
    """

    def run(self, objective: Objective, logs: Logs, steps: int, settle: bool, bar: Bar) -> tuple[float, Logs]:
        """Return the best value and point of `steps` evaluations."""
        leaves = {name: log.detach().clone().requires_grad_() for name, log in logs.items()}
        optimiser = torch.optim.Adam(leaves.values(), lr=ADAM_RATE, betas=(0.9, 0.95))
        best, found, brake = -math.inf, logs, 1.0
        for step in range(steps):
            optimiser.zero_grad()
            value = objective.gradient(leaves)
            bar.update()
            if value > best:
                best, found = value, {name: leaf.detach().clone() for name, leaf in leaves.items()}
            if value == -math.inf:  # A cannot be factorised: go back to the best point and halve the rate
                brake *= 0.5
                for name, leaf in leaves.items():
                    leaf.data.copy_(found[name])
                continue
            falling = 0.1 ** (step / steps) if settle else 1.0
            optimiser.param_groups[0]["lr"] = ADAM_RATE * brake * falling
            for leaf in leaves.values():  # ascend; a bias that affects no derivative has no gradient
                leaf.grad = None if leaf.grad is None else -leaf.grad
            optimiser.step()
            for name, leaf in leaves.items():
                leaf.data.clamp_(*objective.bounds[name])
        return best, found


class _Enough(Exception):
    """All evaluations are used."""


class QuasiNewton(Climb):
    """L-BFGS with a strong Wolfe line search.

    The kernel of an infinite network is a smooth function of its hyper-parameters, so curvature helps, and fewer evaluations
    find a higher maximum than Adam's.
    """

    def run(self, objective: Objective, logs: Logs, steps: int, settle: bool, bar: Bar) -> tuple[float, Logs]:
        """Return the best value and point of at most `steps` evaluations."""
        leaves = {name: log.detach().clone().requires_grad_() for name, log in logs.items()}
        best, found, done = -math.inf, logs, 0
        optimiser = torch.optim.LBFGS(
            leaves.values(), max_iter=steps, max_eval=steps, history_size=HISTORY, line_search_fn="strong_wolfe",
            tolerance_change=1e-9, tolerance_grad=SMALL_GAIN,
        )  # fmt: skip

        def loss() -> Tensor:
            nonlocal best, found, done
            if done == steps:  # inside a line search, which torch does not count
                raise _Enough
            at = {name: log.requires_grad_() for name, log in objective.clamped(leaves).items()}
            value = objective.gradient(at)
            done += 1
            bar.update()
            if value > best:
                best, found = value, {name: log.detach() for name, log in at.items()}
            for name, leaf in leaves.items():
                gradient = at[name].grad if value > -math.inf else None
                outside = at[name].detach() != leaf.detach()
                leaf.grad = torch.zeros_like(leaf) if gradient is None else -gradient.masked_fill(outside, 0.0)
            return torch.tensor(-max(value, -UNDEFINED), dtype=torch.float64)

        with contextlib.suppress(_Enough):
            optimiser.step(loss)  # pyright: ignore[reportArgumentType]
        bar.update(max(0, steps - done))
        return best, found
