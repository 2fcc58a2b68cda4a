"""Functions drawn from a posterior."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

from ntkgp.posterior.predictors import Predictors
from ntkgp.problem.problem import Problem


@dataclass(frozen=True)
class FunctionSample:
    """S functions drawn from a posterior; evaluate them at any points, as often as you like.

    Each function is the linearised network with fixed weights; functions of ``sample_networks`` add a trained copy.

    Call it on M points for values of shape (S, M) or (S, M, C); differentiable in x. Up to rounding, the value at a point
    does not depend on the other points of the call. Cost: 2·M·C·P·S operations; memory P·S numbers for the functions, and
    three times the values during the call.

    Example:
        >>> import torch, ntkgp
        >>> net = ntkgp.mlp(1, width=16, generator=torch.Generator().manual_seed(0))
        >>> x = torch.linspace(-1, 1, 6).unsqueeze(1)
        >>> f = ntkgp.fit(net, x, x[:, 0].sin(), noise_var=0.1).sample(3)
        >>> f(x).shape, bool((f(x) == f(x)).all())
        (torch.Size([3, 6]), True)
    """

    problem: Problem
    weights: Float[Tensor, "P S"]
    centre: Callable[[Tensor], Float[Tensor, "MC"]] | None = (
        None  # the posterior mean minus m, if the weights do not include it
    )
    networks: Predictors | None = None  # one trained copy per function, if the weights are a prior draw

    def __call__(self, x: Tensor) -> Tensor:
        """Evaluate all S functions at x."""
        answers, operators = self.problem.answers, self.problem.operators
        x = answers.checked(x)
        mean = answers.mean_at(x) if self.centre is None else answers.mean_at(x) + self.centre(x)
        values = mean.unsqueeze(1) + operators.features(operators.at(x), self.weights)
        values = values if self.networks is None else values + self.networks(x).to(values.dtype)
        values = answers.cast(values).T.unflatten(1, (-1, answers.outputs))
        return values.squeeze(2) if answers.vector_output else values

    def __getitem__(self, which: int | slice) -> "FunctionSample":
        """Select functions: ``f[3]`` is a sample of one function, ``f[:8]`` a sample of eight."""
        which = slice(which, which + 1 or None) if isinstance(which, int) else which
        networks = None if self.networks is None else self.networks[which]
        return replace(self, weights=self.weights[:, which], networks=networks)
