"""Hyper-parameters by marginal likelihood: noise, prior variances, input scales, and if asked the scales of the weights."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ntkgp._checks import check_count, check_generator, check_module, check_noise, check_pair, check_positive
from ntkgp._progress import progress_bar
from ntkgp._types import MeanFunction, NumericalWarning
from ntkgp.batches import Batches
from ntkgp.climb import Climb, evaluations
from ntkgp.distributed import Group
from ntkgp.exact import Exact, ExactPosterior
from ntkgp.fit import as_data
from ntkgp.pose import open_network
from ntkgp.sharded import gathered, opening
from ntkgp.tuned import Tuned

CHECKED_ROWS = 10_000  # of the leave-one-out errors: one dense factorisation


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
    """Noise, prior variances and input scales that maximise the log marginal likelihood.

    The gradient goes through the layer factors, so the cost of a step is four products of n² by the width of each layer and n³
    operations, n = min(N·C, `points`). Memory: n² numbers for each prior variance and three times as many again. The module is
    copied and never changed.

    Args:
        module: any ``nn.Module``; or several (other depths, activations), of which the likeliest is taken.
        x: points as for :func:`ntkgp.fit`; beyond `points` rows a random subset is used (docs/tuning.md says why).
        y: targets.
        input_scales: learn one scale per input feature. Every :class:`InputScales` inside the module is learned; a module
            that has none, and takes (N, D) points, is wrapped into one.
        weight_scales: also learn one factor for each weight and bias tensor at θ0, in a copy.
        prior_var: ``"layers"`` for one per layer, ``"shared"`` for one, or lists of module names, one variance a list.
        noise_var: ``"shared"`` to learn one variance, ``"outputs"`` to learn one per output, or known values as in ``fit``.
        prior_mean: as for ``fit``; with :func:`network_mean` the inputs are not scaled, since that would change the mean.
        parameters: module names to take the tangent by, all when None.
        points: rows N·C beyond which a random subset is used.
        starts: tried for a quarter of the steps each; the best goes on. The likelihood of input scales has several maxima.
        steps: evaluations of the likelihood from the best start.
        hyper_prior: width, in units of the logarithm, of a bell that keeps scales near their start (twice as wide for prior
            variances, none for noise), since with few points the likelihood alone over-fits many scales. None for none.
        generator: source of the subset; the global one when None.
        progress: show a progress bar.
        group: several processes, each with its own shard of x and y, as for :func:`ntkgp.fit`. The subset is drawn from all
            points and gathered; every rank then does the same work, and all take what rank 0 found.

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
    options = {
        "input_scales": input_scales, "weight_scales": weight_scales, "prior_var": prior_var, "noise_var": noise_var,
        "prior_mean": prior_mean, "parameters": None if parameters is None else tuple(parameters), "starts": starts,
        "steps": steps, "hyper_prior": hyper_prior,
    }  # fmt: skip
    if group is not None:
        return _tuned_by_group(group, module, x, y, points, generator, {**options, "progress": progress})
    check_count(points, "points", 1)
    check_count(starts, "starts", 1)
    check_count(steps, "steps", 1)
    check_positive("tune", hyper_prior=hyper_prior)
    check_generator(generator)
    # An nn.Sequential is a module and no sequence.
    modules = list(module) if isinstance(module, Sequence) else [module]
    if not modules:
        raise ValueError("module must be a torch.nn.Module or several of them, got none")
    for candidate in modules:
        check_module(candidate)
    data = as_data(modules[0], x, y)
    xs, ys = data.joined() if isinstance(data, Batches) else (data, y)
    for candidate in modules:
        open_network(candidate, xs)  # before it is wrapped: errors name its own parts
    assert ys is not None
    check_pair(xs, ys)
    some_x, some_y, options["noise_var"] = _subset(xs, ys, noise_var, points, generator)
    with progress_bar(progress, total=len(modules) * evaluations(starts, steps), desc="tuning") as bar:
        found = [Climb(candidate, some_x, some_y, bar, **options).run() for candidate in modules]
    best = max(found, key=lambda tuned: tuned.log_marginal_likelihood)
    whole = best if isinstance(noise_var, str) else replace(best, noise_var=noise_var, noise_known=True)
    few = ys.numel() <= CHECKED_ROWS
    best = replace(whole, leave_one_out=_calibration(whole, xs, ys) if few else _calibration(best, some_x, some_y))
    for note in best.notes:
        if "edge" in note:
            warnings.warn(note, NumericalWarning, stacklevel=2)
    return replace(best, candidates=tuple(t.log_marginal_likelihood for t in found)) if len(found) > 1 else best


def _tuned_by_group(
    group: Group | dist.ProcessGroup,
    module: nn.Module | Sequence[nn.Module],
    x: Tensor | Iterable[tuple[Tensor, Tensor]],
    y: Tensor | None,
    points: int,
    generator: torch.Generator | None,
    options: dict[str, Any],
) -> Tuned:
    """The same on the ranks' points together, or on the subset of them that one process would draw."""
    group = group if isinstance(group, Group) else Group(group)
    modules = list(module) if isinstance(module, Sequence) else [module]
    with group.together():
        check_count(points, "points", 1)
        generator, data, noise_var = group.shared(generator), as_data(modules[0], x, y), options["noise_var"]
        _, kind = opening(group, data, y)
        outputs = kind.shape[1:].numel()
        count = sum(len(part) for part, _ in data) if isinstance(data, Batches) else len(data)
        every, chosen = int(group.total(count)), None
        if every * outputs > CHECKED_ROWS and every > max(1, points // outputs):
            chosen = _draw(every, max(1, points // outputs), generator)
        xs, ys, noise = gathered(group, data, y, noise_var, chosen=chosen)
        found = tune(module, xs, ys, points=points, generator=generator, **{**options, "noise_var": noise})
        # Ranks of different make may end a little apart.
        values = found.noise_var if isinstance(found.noise_var, Tensor) else torch.tensor(found.noise_var, dtype=torch.float64)
        shared = group.copied(values, values.device)
        prior = group.facts(found.prior_var)[0]
        with torch.no_grad():
            for tensor in [*found.module.parameters(), *found.module.buffers()]:
                same = group.copied(tensor, tensor.device)
                assert same is not None
                tensor.copy_(same)
        assert shared is not None
        learned = shared if isinstance(found.noise_var, Tensor) else float(shared)
        return replace(found, prior_var=prior, noise_var=learned if isinstance(noise_var, str) else noise_var)


def _calibration(tuned: Tuned, x: Tensor, y: Tensor) -> float:
    """Mean squared leave-one-out error in predictive variances, over the points without a copy: whose variance is not tiny."""
    posterior = tuned.fit(x, y, method=Exact())
    assert isinstance(posterior, ExactPosterior)
    errors, std = (t.flatten() for t in posterior.leave_one_out())
    return float(errors[std >= 0.1 * std.median()].square().mean())


def _subset(
    x: Tensor, y: Tensor, noise_var: str | float | Tensor, rows: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, str | float | Tensor]:
    """At most `rows` rows N·C of the data, drawn at random."""
    outputs = y.shape[1] if y.ndim == 2 else 1
    count = max(1, rows // outputs)
    if isinstance(noise_var, Tensor) and noise_var.ndim and len(noise_var) != 1:
        noise_var = check_noise(noise_var, (len(x), outputs))
    if len(x) <= count:
        return x, y, noise_var
    chosen = _draw(len(x), count, generator).to(x.device)
    per_point = isinstance(noise_var, Tensor) and noise_var.ndim and len(noise_var) == len(x)
    return x[chosen], y[chosen], noise_var[chosen.to(noise_var.device)] if per_point else noise_var  # pyright: ignore


def _draw(every: int, count: int, generator: torch.Generator | None) -> Tensor:
    """Places of `count` of all points, ascending."""
    device = "cpu" if generator is None else generator.device
    return torch.randperm(every, generator=generator, device=device)[:count].sort().values.cpu()
