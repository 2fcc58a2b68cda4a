"""The kernel of an infinite network: a block of it between two sets of points, and its diagonal."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ntkgp.networks.infinite.plan import plan
from ntkgp.networks.infinite.steps import Covariances, Inputs, Priors, Step, Values

TILE_POINTS = 256  # points per block, whose few dozen intermediates fit the cache


@dataclass(frozen=True)
class InfiniteNetwork:
    """A network of infinite width, checked: its steps, its values and its number of outputs.

    The kernel of C outputs is Θ(x, x′) for equal outputs, and zero for different ones.
    """

    module: nn.Module
    step: Step
    outputs: int  # C
    values: Values  # the standard deviations of its layers, and its buffers

    @classmethod
    def of(cls, module: nn.Module) -> "InfiniteNetwork":
        """Check the module; an error names the layer that has no infinite limit."""
        planned = plan(module)
        if planned.width is None or math.isinf(planned.width):
            raise ValueError("an infinite network must end in InfiniteLinear(math.inf, C), with a finite number C of outputs")
        values = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return cls(module, planned.step, int(planned.width), {name: value.detach() for name, value in values.items()})

    def block(self, x: Tensor, other: Tensor, priors: Priors, values: Values | None = None) -> Covariances:
        """Covariances and tangent kernels, by group, between two small sets of points; differentiable in everything."""
        return self._run(Inputs(x, other), priors, values)

    def diagonal(self, x: Tensor, priors: Priors, values: Values | None = None) -> Covariances:
        """The same of each point with itself."""
        return self._run(Inputs(x, None), priors, values)

    def _run(self, inputs: Inputs, priors: Priors, values: Values | None) -> Covariances:
        found = self.step(inputs, {**self.values, **(values or {})}, priors)
        assert isinstance(found, Covariances)
        return found


def tangent_of(found: Covariances, like: Tensor) -> Tensor:
    """The tangent kernel of all groups together."""
    shares = list(found.tangent.values())
    return torch.zeros_like(like) if not shares else torch.stack(shares).sum(dim=0) if len(shares) > 1 else shares[0]
