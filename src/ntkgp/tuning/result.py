"""What tuning found: a network with its noise and prior variances, ready to be fitted; and briefly trained networks."""

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
    """A briefly trained network, how long it was trained, and why; made by :func:`warm_up`.

    Attributes:
        module: the trained copy; of several networks their :class:`SumOfNetworks`.
        steps: chosen number of steps.
        scores: for each candidate the mean log predictive density of held-out points under the Gaussian process of the network
            trained that long; empty when there was one candidate.

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
    """What :func:`tune` found; ``tuned.fit(x, y)`` is the posterior with it.

    Attributes:
        module: a copy of the module, its inputs (and weights, where asked) scaled; the tangent is taken of this one.
        noise_var: a number; one per output as (1, C); or what was passed.
        prior_var: a number, or one per module name.
        log_marginal_likelihood: log p(y) of the points it was computed on.
        start: log p(y) at the values it started from.
        points: how many points that were.
        leave_one_out: mean squared error of predicting each point (of all, up to 10,000 rows) from the others, in predictive
            variances: 1 when calibrated, above when over-confident. Copies of other points, whose prediction is no test, do
            not count.
        notes: what a person should know: edges reached, hyper-parameters the likelihood says nothing about.
        candidates: log marginal likelihood of each module, when several were passed.
        prior_mean: as passed.
        parameters: as passed.
        noise_known: whether the noise was passed rather than found.
        warm_up: the features that :func:`tune_table` trained; None where there were none.

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
        """:func:`ntkgp.fit` with what was found."""
        return fit(
            self.module, x, y, noise_var=self.noise_var, method=method, prior_mean=self.prior_mean, prior_var=self.prior_var,
            parameters=self.parameters, generator=generator, progress=progress, group=group, checkpoint=checkpoint,
        )  # fmt: skip

    def widened(self) -> "Tuned":
        """The same with all variances multiplied by `leave_one_out` where that exceeds 1; known noise stays as it is.

        The mean does not change where the noise was found. Maximum likelihood over many hyper-parameters is over-confident on
        small data, and the errors of leaving one point out see it.
        """
        factor = max(1.0, self.leave_one_out)
        prior = self.prior_var
        scaled = {name: v * factor for name, v in prior.items()} if isinstance(prior, dict) else prior * factor
        noise = self.noise_var if self.noise_known else self.noise_var * factor
        return replace(self, noise_var=noise, prior_var=scaled, leave_one_out=self.leave_one_out / factor)

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
