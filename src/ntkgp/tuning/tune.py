"""Hyper-parameters by marginal likelihood: noise, prior variances, input scales and, optionally, weight scales."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ntkgp._system.check_data import check_pair
from ntkgp._system.check_module import check_module
from ntkgp._system.check_options import check_count, check_generator, check_positive
from ntkgp._system.errors import NumericalWarning
from ntkgp._system.progress import Bar, progress_bar
from ntkgp._system.settings import in_own_settings
from ntkgp._system.types import MeanFunction
from ntkgp.distributed.group import Group
from ntkgp.posterior.exact.method import Exact
from ntkgp.posterior.exact.posterior import ExactPosterior
from ntkgp.problem.source import Source
from ntkgp.tangent.opening import open_network
from ntkgp.tuning.result import Tuned
from ntkgp.tuning.search import Search, SearchOptions
from ntkgp.tuning.subsets import as_on_rank_0, sample_of_ranks, subset

LEAVE_ONE_OUT_ROWS = 10_000  # most rows for leave-one-out errors, which need one dense factorisation


@in_own_settings(gradients=True)
def tune(
    module: nn.Module | Sequence[nn.Module],
    x: Tensor | Iterable[tuple[Tensor, Tensor]],
    y: Tensor | None = None,
    *,
    input_scales: bool = True,
    weight_scales: bool = False,
    prior_var: str | Sequence[Sequence[str]] = "layers",
    noise_var: str | float | Tensor = "shared",
    prior_mean: MeanFunction | None = None,
    parameters: Iterable[str] | None = None,
    points: int = 2000,
    starts: int = 3,
    steps: int = 100,
    hyper_prior: float | None = None,
    generator: torch.Generator | None = None,
    progress: bool = False,
    group: Group | dist.ProcessGroup | None = None,
) -> Tuned:
    """Find noise, prior variances and input scales that maximise the log marginal likelihood.

    The gradient goes through the layer factors. Cost per step: n³ operations, and per layer four products of n² numbers by its
    width, n = min(N·C, `points`). Memory: n² numbers per prior variance, and 3·n² more. The module is copied and never
    changed.

    Args:
        module: any ``nn.Module``; or several (other depths, activations); the one with the highest likelihood wins.
        x: points as for :func:`ntkgp.fit`; if there are more than `points` rows, a random subset (docs/tuning.md explains why).
        y: targets.
        input_scales: learn one scale per input feature, in every :class:`InputScales` of the module. A module without one that
            takes (N, D) points gets one in front.
        weight_scales: also learn one factor per weight or bias tensor of θ0, in a copy.
        prior_var: ``"layers"`` for one variance per layer, ``"shared"`` for a single one, or lists of module names with one
            variance per list.
        noise_var: ``"shared"`` to learn one variance, ``"outputs"`` to learn one per output, or known values as in ``fit``.
        prior_mean: as for ``fit``; with :func:`network_mean` the inputs are not scaled, because that would change the mean.
        parameters: names of the modules whose parameters enter the tangent; all if None.
        points: largest number of rows N·C to use; above it, a random subset.
        starts: number of starting points. Each gets a quarter of the steps, and the search continues from the best, because
            the likelihood has several maxima in the input scales.
        steps: number of likelihood evaluations from the best start.
        hyper_prior: standard deviation, in units of the logarithm, of a Gaussian prior on scales around their start (twice as
            wide for prior variances, none for noise). With few points the likelihood alone over-fits many scales. None for
            no such prior.
        generator: random numbers for the subset; torch's global generator if None.
        progress: show a progress bar.
        group: several processes, each with its own shard of x and y, as for :func:`ntkgp.fit`. The subset is drawn from all
            points and gathered. Every rank then does the same work, and all ranks return the result of rank 0.

    Example:
        >>> import torch, ntkgp
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.rand(60, 2, generator=g) * 4 - 2
        >>> y = torch.sin(2 * x[:, 0]) + 0.1 * torch.randn(60, generator=g)  # the second input does not matter
        >>> tuned = ntkgp.tune(ntkgp.mlp(2, width=64, activation=torch.nn.SiLU(), generator=g), x, y, steps=60)
        >>> bool(tuned.input_scales["scales"][0] > 4 * tuned.input_scales["scales"][1])
        True
        >>> bool(0.005 < tuned.noise_var < 0.02)
        True
        >>> posterior = tuned.fit(x, y)
    """
    options = SearchOptions(
        input_scales, weight_scales, prior_var, noise_var, prior_mean, None if parameters is None else tuple(parameters),
        starts, steps, hyper_prior,
    )  # fmt: skip
    modules = list(module) if isinstance(module, Sequence) else [module]  # an nn.Sequential is a module, not a Sequence
    together, bar = Group.of(group), partial(progress_bar, progress, desc="tuning")
    if together is None:
        return tune_by(options, modules, x, y, points, generator, bar)
    with together.together():
        check_count(points, "points", 1)
        generator = together.shared(generator)
        source = Source.of(modules[0], x, y, noise_var, together)
        some = sample_of_ranks(together, source, points, LEAVE_ONE_OUT_ROWS, generator)
        options = replace(options, noise_var=some.noise_var)
        return as_on_rank_0(tune_by(options, modules, some.x, some.y, points, generator, bar), together, noise_var)


def tune_by(
    options: SearchOptions,
    modules: list[nn.Module],
    x: Any,
    y: Tensor | None,
    points: int,
    generator: torch.Generator | None,
    progress: Callable[..., Bar],
) -> Tuned:
    """Tune every module in one process and return the one with the highest likelihood."""
    for name, value in {"points": points, "starts": options.starts, "steps": options.steps}.items():
        check_count(value, name, 1)
    check_positive("tune", hyper_prior=options.hyper_prior)
    check_generator(generator)
    if not modules:
        raise ValueError("module must be a torch.nn.Module or a non-empty sequence of them, got an empty sequence")
    for candidate in modules:
        check_module(candidate)
    x, y = Source.of(modules[0], x, y, options.noise_var).tensors()
    for candidate in modules:
        open_network(candidate, x)  # before wrapping, so that errors use the user's names
    check_pair(x, y)
    noise_var, some = options.noise_var, subset(Source(x, y, options.noise_var), points, generator)
    some_x, some_y = some.tensors()
    options = replace(options, noise_var=some.noise_var)
    with progress(total=len(modules) * options.evaluations) as bar:
        found = [Search(candidate, some_x, some_y, options, bar).run() for candidate in modules]
    best = max(found, key=lambda tuned: tuned.log_marginal_likelihood)
    whole = best if isinstance(noise_var, str) else replace(best, noise_var=noise_var, noise_known=True)
    few = y.numel() <= LEAVE_ONE_OUT_ROWS
    error = _calibration(whole, x, y) if few else _calibration(best, some_x, some_y)
    best = replace(whole, leave_one_out=error)
    for note in best.notes:
        if "edge" in note:
            warnings.warn(note, NumericalWarning, stacklevel=3)
    return replace(best, candidates=tuple(t.log_marginal_likelihood for t in found)) if len(found) > 1 else best


def _calibration(tuned: Tuned, x: Tensor, y: Tensor) -> float:
    """Return the mean squared leave-one-out error in predictive variances; skip duplicate points (tiny variance)."""
    posterior = tuned.fit(x, y, method=Exact())
    assert isinstance(posterior, ExactPosterior)
    errors, std = (t.flatten() for t in posterior.leave_one_out())
    return float(errors[std >= 0.1 * std.median()].square().mean())
