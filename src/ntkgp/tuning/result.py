"""Results of tuning: a network with its noise and prior variances, ready to fit; and briefly trained networks."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ntkgp._system.types import MeanFunction
from ntkgp.distributed.group import Group
from ntkgp.networks.layers import InputScales
from ntkgp.posterior.fit import Method, fit
from ntkgp.posterior.interface import Posterior
from ntkgp.storage.checkpoint import Checkpoint


@dataclass(frozen=True)
class WarmUp:
    """A briefly trained network, its number of steps, and the scores that chose it; made by :func:`warm_up`.

    Attributes:
        module: the trained copy; for several networks, their :class:`SumOfNetworks`.
        steps: chosen number of steps.
        scores: score of each candidate number of steps; by default the mean log predictive density of held-out points under
            the Gaussian process of the network trained that long. Empty for a single candidate.

    Example:
        >>> import torch
        >>> WarmUp(torch.nn.Linear(1, 1), steps=100, scores={0: -1.2, 100: -0.3}).steps
        100
    """

    module: nn.Module
    steps: int
    scores: dict[int, float]


@dataclass(frozen=True)
class Tuned:
    """The result of :func:`tune`; ``tuned.fit(x, y)`` is the posterior with these hyper-parameters.

    Attributes:
        module: a copy of the module with scaled inputs (and weights, if requested); the tangent is taken of this copy.
        noise_var: a number, one per output as (1, C), or the value that was passed.
        prior_var: a number, or one per module name.
        log_marginal_likelihood: log p(y) of the points used for tuning.
        start: log p(y) at the start of the search.
        points: number of points used for tuning.
        leave_one_out: mean squared error of predicting each point from the others, in predictive variances: 1 if calibrated,
            above 1 if over-confident. Computed on all points up to 10,000 rows, else on the subset; duplicate points do
            not count, because predicting them is no test.
        cross_validated: the same for points in folds, each predicted from the others with hyper-parameters tuned on these;
            None if it was not computed.
        notes: for the user: values at an edge of their range, and hyper-parameters in which the likelihood is flat.
        candidates: log marginal likelihood of each module, if several were passed.
        prior_mean: as passed.
        parameters: as passed.
        noise_known: whether the user passed the noise.
        warm_up: the features that :func:`tune_table` trained; None if there are none.

    Example:
        >>> import torch, ntkgp
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
        >>> tuned = ntkgp.tune(ntkgp.mlp(1, width=16), x, x[:, 0], steps=5)
        >>> tuned.log_marginal_likelihood >= tuned.start
        True
    """

    module: nn.Module
    noise_var: float | Tensor
    prior_var: float | dict[str, float]
    log_marginal_likelihood: float
    start: float
    points: int
    leave_one_out: float
    notes: tuple[str, ...] = ()
    candidates: tuple[float, ...] = ()
    prior_mean: MeanFunction | None = None
    parameters: tuple[str, ...] | None = None
    noise_known: bool = False
    warm_up: WarmUp | None = None
    cross_validated: float | None = None

    @property
    def input_scales(self) -> dict[str, Tensor]:
        """The scales of each :class:`InputScales` inside the module."""
        return {name: part.scale for name, part in self.module.named_modules() if isinstance(part, InputScales)}

    def fit(
        self,
        x: Tensor | Iterable[tuple[Tensor, Tensor]],
        y: Tensor | None = None,
        *,
        method: Method | None = None,
        generator: torch.Generator | None = None,
        progress: bool = False,
        group: Group | dist.ProcessGroup | None = None,
        checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
    ) -> Posterior:
        """Call :func:`ntkgp.fit` with these hyper-parameters."""
        return fit(
            self.module, x, y, noise_var=self.noise_var, method=method, prior_mean=self.prior_mean, prior_var=self.prior_var,
            parameters=self.parameters, generator=generator, progress=progress, group=group, checkpoint=checkpoint,
        )  # fmt: skip

    def widened(self) -> "Tuned":
        """Return the result with all variances multiplied by the error of held-out points if it exceeds 1.

        That is `cross_validated`, or else `leave_one_out`. Known noise does not change; unless the noise is known, the mean
        does not change. Maximum likelihood over many hyper-parameters is over-confident on small data, and held-out points show
        it.
        """
        error = self.leave_one_out if self.cross_validated is None else self.cross_validated
        factor = max(1.0, error)
        prior = self.prior_var
        scaled = {name: v * factor for name, v in prior.items()} if isinstance(prior, dict) else prior * factor
        noise = self.noise_var if self.noise_known else self.noise_var * factor
        crossed = None if self.cross_validated is None else self.cross_validated / factor
        return replace(
            self, noise_var=noise, prior_var=scaled, leave_one_out=self.leave_one_out / factor, cross_validated=crossed
        )

    def __str__(self) -> str:
        lines = [f"log marginal likelihood {self.log_marginal_likelihood:.2f} on {self.points} points (start {self.start:.2f})"]
        noise = self.noise_var
        lines.append(f"noise_var {noise.flatten()[:8].tolist() if isinstance(noise, Tensor) else f'{noise:.4g}'}")
        lines.append(f"prior_var {_short(self.prior_var)}")
        lines += [
            f"{name or 'input'} scales {[round(s, 4) for s in scale.tolist()]}" for name, scale in self.input_scales.items()
        ]
        return "\n".join([*lines, *self.notes])


def _short(prior_var: float | dict[str, float]) -> str:
    if not isinstance(prior_var, dict):
        return f"{prior_var:.4g}"
    return "{" + ", ".join(f"{name!r}: {v:.3g}" for name, v in prior_var.items()) + "}"
