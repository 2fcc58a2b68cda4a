"""Hyper-parameters by marginal likelihood: noise, prior variances, input scales, and if asked the scales of the weights."""

import copy
import math
import os
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from tqdm.auto import tqdm

from ntkgp._checks import check_count, check_module, check_noise, check_positive
from ntkgp._types import MeanFunction, NumericalWarning
from ntkgp.batches import Batches
from ntkgp.checkpoint import Checkpoint
from ntkgp.distributed import Group
from ntkgp.exact import Exact, ExactPosterior
from ntkgp.fit import Method, as_data, fit
from ntkgp.likelihood import NOISE, PRIOR, Likelihood, Logs
from ntkgp.networks import InputScales
from ntkgp.posterior import Posterior
from ntkgp.problem import Problem, network_mean, pose
from ntkgp.sharded import gathered, opening

NOISE_RANGE = (1e-6, 10.0)  # of the mean square of the residuals
SCALE_RANGE = (1e-3, 1e3)  # of the scale the module starts with
PRIOR_RANGE = (1e-6, 1e6)  # of the variance at which each group explains its share of the residuals
RATE = 0.2  # of Adam, in units of the logarithm
CHECKED_ROWS = 10_000  # of the leave-one-out errors: one dense factorisation
EDGE = 0.05  # of the logarithm: this close counts as being there
FLAT = 0.5  # nats by which the likelihood must fall when a hyper-parameter is doubled or halved


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
        return _tuned_by_group(
            group, module, x, y, points, generator, {**options, "progress": progress}
        )  # fmt: skip
    check_count(points, "points", 1)
    check_count(starts, "starts", 1)
    check_count(steps, "steps", 1)
    check_positive("tune", hyper_prior=hyper_prior)
    modules = list(module) if isinstance(module, Sequence) else [module]
    for candidate in modules:
        check_module(candidate)
    data = as_data(modules[0], x, y)
    xs, ys = data.joined() if isinstance(data, Batches) else (data, y)
    assert ys is not None
    some_x, some_y, options["noise_var"] = _subset(xs, ys, noise_var, points, generator)
    with tqdm(total=len(modules) * _evaluations(starts, steps), desc="tuning", disable=not progress) as bar:
        found = [_Tuning(candidate, some_x, some_y, bar, **options).run() for candidate in modules]
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


@dataclass
class _Tuning:
    """One module being tuned."""

    module: nn.Module
    x: Tensor
    y: Tensor
    bar: tqdm
    input_scales: bool
    weight_scales: bool
    prior_var: str | Sequence[Sequence[str]]
    noise_var: str | float | Tensor
    prior_mean: MeanFunction | None
    parameters: tuple[str, ...] | None
    starts: int
    steps: int
    hyper_prior: float | None
    bounds: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def run(self) -> Tuned:
        """Several short climbs, a long one from the best of them, and what there is to say about the result."""
        wrapped = self._wrapped()
        parameters = self.parameters
        if parameters is not None and wrapped is not self.module:
            parameters = tuple(f"network.{name}" if name else "network" for name in parameters)
        known = self.noise_var if not isinstance(self.noise_var, str) else 1.0
        problem = pose(wrapped, self.x, self.y, noise_var=known, prior_mean=self.prior_mean, dtype=torch.float64,
                       parameters=parameters)  # fmt: skip
        groups = _groups(self.prior_var, list(problem.network.anchor), wrapped is not self.module)
        scales = {name: t for name, t in problem.network.module.named_buffers() if self._is_scale(problem, name)}
        weights = dict(problem.network.anchor) if self.weight_scales else {}
        likelihood = Likelihood(problem, list(groups.values()), base=weights)
        centre = self._centre(likelihood, scales, weights)
        start = likelihood.value(centre)
        starts = self._starts(centre)
        if len(starts) > 1:
            climbs = [self._climb(likelihood, logs, centre, max(1, self.steps // 4), settle=False) for logs in starts]
            starts = [max(climbs, key=lambda climb: climb[0])[1]]
        _, logs = self._climb(likelihood, starts[0], centre, self.steps, settle=True)
        return self._result(wrapped, likelihood, groups, logs, start, parameters)

    def _wrapped(self) -> nn.Module:
        """The module with its inputs scaled, where that can be done and was asked for."""
        has_scales = any(isinstance(part, InputScales) for part in self.module.modules())
        scalable = self.x.ndim == 2 and self.x.is_floating_point() and self.prior_mean is not network_mean
        if not self.input_scales or has_scales or not scalable:
            return self.module
        p = next(self.module.parameters())
        scales = InputScales(torch.ones(self.x.shape[1], dtype=p.dtype, device=p.device))
        return nn.Sequential(OrderedDict(scales=scales, network=self.module)).train(self.module.training)

    def _is_scale(self, problem: Problem, name: str) -> bool:
        path, _, leaf = name.rpartition(".")
        return self.input_scales and leaf == "scale" and isinstance(problem.network.module.get_submodule(path), InputScales)

    def _centre(self, likelihood: Likelihood, scales: dict[str, Tensor], weights: dict[str, Tensor]) -> Logs:
        """Where to start: scales as they are, noise a tenth of the residuals' power, each group its share of it."""
        problem = likelihood.problem
        power = problem.residual.square().mean().clamp_min(torch.finfo(torch.float64).tiny ** 0.5)
        if not bool(torch.isfinite(power)):
            raise ValueError("the squares of the residuals y − prior_mean overflow; rescale y")
        settings = {**{name: s.log() for name, s in scales.items()}, **{name: power.new_zeros(()) for name in weights}}
        settings = {name: log.clone() for name, log in settings.items()}
        with torch.no_grad():
            kernels = likelihood.kernels(settings).kernels
            sizes = torch.stack([kernel.diagonal().mean() for kernel in kernels])
        shares = torch.where(sizes > 0, power / (len(sizes) * sizes.clamp_min(1e-300)), torch.ones_like(sizes))
        logs: Logs = {PRIOR: shares.log()}
        if self.noise_var == "outputs":
            logs[NOISE] = (0.1 * power).log().expand(problem.outputs).clone()
        elif isinstance(self.noise_var, str):
            if self.noise_var != "shared":
                raise ValueError(f"noise_var must be 'shared', 'outputs' or known values, got {self.noise_var!r}")
            logs[NOISE] = (0.1 * power).log().reshape(1)
        logs.update(settings)
        ranges = {NOISE: (NOISE_RANGE[0] / 0.1, NOISE_RANGE[1] / 0.1), PRIOR: PRIOR_RANGE}
        for name, log in logs.items():
            low, high = ranges.get(name, SCALE_RANGE)
            self.bounds[name] = (log + math.log(low), log + math.log(high))
        return logs

    def _starts(self, centre: Logs) -> list[Logs]:
        """The centre, the same with little noise, then longer and shorter length scales."""
        moves = [(1.0, 1.0), (0.01, 1.0), (0.01, 1 / 3), (0.1, 3.0), (1.0, 0.1), (0.01, 10.0)]
        starts = []
        for k in range(self.starts):
            noise, scale = moves[k % len(moves)]
            factors = {name: noise if name == NOISE else 1.0 if name == PRIOR else scale for name in centre}
            starts.append({name: log + math.log(factors[name]) for name, log in centre.items()})
        return starts

    def _climb(self, likelihood: Likelihood, logs: Logs, centre: Logs, steps: int, settle: bool) -> tuple[float, Logs]:
        """Adam on the logarithms; the best point seen. The rate falls to a tenth at the end if the climb is to settle.

        The likelihood of a finite network is rugged in its input scales: momentum carries Adam over ridges at which
        quasi-Newton line searches stop (benchmarks/tuning.py compares the two).
        """
        leaves = {name: log.detach().clone().requires_grad_() for name, log in logs.items()}
        optimiser = torch.optim.Adam(leaves.values(), lr=RATE, betas=(0.9, 0.95))
        best, kept, brake = -math.inf, logs, 1.0
        for step in range(steps):
            optimiser.zero_grad()
            value = likelihood.gradient(leaves) + self._hyper_prior(leaves, centre)
            self.bar.update()
            if value > best:
                best, kept = value, {name: leaf.detach().clone() for name, leaf in leaves.items()}
            if value == -math.inf:  # A cannot be factorised: back to where it could, and slower
                brake *= 0.5
                for name, leaf in leaves.items():
                    leaf.data.copy_(kept[name])
                continue
            falling = 0.1 ** (step / steps) if settle else 1.0
            optimiser.param_groups[0]["lr"] = RATE * brake * falling
            for leaf in leaves.values():  # uphill; a bias that moves no derivative has no gradient
                leaf.grad = None if leaf.grad is None else -leaf.grad
            optimiser.step()
            for name, leaf in leaves.items():
                leaf.data.clamp_(*self.bounds[name])
        return best, kept

    def _hyper_prior(self, leaves: Logs, centre: Logs) -> float:
        """The bell around the centre, its gradient added to the leaves'."""
        if self.hyper_prior is None:
            return 0.0
        total = 0.0
        for name, leaf in leaves.items():
            if name == NOISE:
                continue
            width = self.hyper_prior * (2 if name == PRIOR else 1)
            away = (leaf.detach() - centre[name]) / width
            total -= 0.5 * float(away.square().sum())
            leaf.grad = -away / width if leaf.grad is None else leaf.grad - away / width
        return total

    def _result(
        self, module: nn.Module, likelihood: Likelihood, groups: dict[str, list[str]], logs: Logs, start: float,
        parameters: tuple[str, ...] | None,
    ) -> Tuned:  # fmt: skip
        values = {name: log.exp() for name, log in logs.items()}
        tuned = copy.deepcopy(module)
        with torch.no_grad():
            tensors = {**dict(tuned.named_buffers()), **dict(tuned.named_parameters())}
            for name, value in values.items():
                if name not in (NOISE, PRIOR):
                    tensors[name].copy_(value * likelihood.base[name] if name in likelihood.base else value)
        if NOISE not in values:
            assert not isinstance(self.noise_var, str)
            noise = self.noise_var
        else:
            noise = float(values[NOISE]) if len(values[NOISE]) == 1 else values[NOISE].unsqueeze(0)
        prior = values[PRIOR].tolist()
        named = {name: v for (key, names), v in zip(groups.items(), prior, strict=True) for name in key.split("+")}
        return Tuned(
            module=tuned,
            noise_var=noise,
            prior_var=prior[0] if self.prior_var == "shared" else named,
            log_marginal_likelihood=likelihood.value(logs),
            start=start,
            points=len(self.x),
            leave_one_out=math.nan,  # of all the data, by the caller
            notes=tuple(self._notes(likelihood, list(groups), logs)),
            prior_mean=self.prior_mean,
            parameters=parameters,
        )

    def _notes(self, likelihood: Likelihood, groups: list[str], logs: Logs) -> Iterator[str]:
        """Edges reached, and variances that can be doubled or halved without the likelihood noticing."""
        for name, log in logs.items():
            low, high = self.bounds[name]
            for k, label in enumerate(_labels(name, log, groups)):
                value = log.flatten()[k]
                # A scale that falls to nothing only says that a feature does not matter.
                edge = "upper" if value > high.flatten()[k] - EDGE else "lower" if value < low.flatten()[k] + EDGE else ""
                if edge == "upper" or (edge and name in (NOISE, PRIOR)):
                    yield f"{label} sits at the {edge} edge of its range, {float(value.exp()):.3g}"
        best, kernels = likelihood.value(logs), likelihood.kernels(logs)
        for name in (name for name in (NOISE, PRIOR) if name in logs):
            for k, label in enumerate(_labels(name, logs[name], groups)):
                one = torch.zeros_like(logs[name])
                one[k] = math.log(2)
                moved = [likelihood.value({**logs, name: logs[name] + step}, kernels) for step in (one, -one)]
                if best - min(moved) < FLAT:
                    drop = best - min(moved)
                    yield f"the likelihood is flat in {label}: doubling or halving it costs at most {drop:.2g} nats"


def _labels(name: str, log: Tensor, groups: list[str]) -> list[str]:
    """What to call each number of a hyper-parameter."""
    if name == PRIOR:
        return [f"prior_var of {group!r}" if group else "prior_var" for group in groups]
    return [name] if log.numel() == 1 else [f"{name}[{k}]" for k in range(log.numel())]


def _calibration(tuned: Tuned, x: Tensor, y: Tensor) -> float:
    """Mean squared leave-one-out error in predictive variances, over the points without a copy: whose variance is not tiny."""
    posterior = tuned.fit(x, y, method=Exact())
    assert isinstance(posterior, ExactPosterior)
    errors, std = (t.flatten() for t in posterior.leave_one_out())
    return float(errors[std >= 0.1 * std.median()].square().mean())


def _evaluations(starts: int, steps: int) -> int:
    return (starts * max(1, steps // 4) if starts > 1 else 0) + steps


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


def _groups(prior_var: str | Sequence[Sequence[str]], names: list[str], wrapped: bool) -> dict[str, list[str]]:
    """Parameter names by group; the key is the module names of the group, joined by '+'."""
    if prior_var == "shared":
        return {"": names}
    if prior_var == "layers":
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(name.rpartition(".")[0], []).append(name)
        return groups
    if isinstance(prior_var, str):
        raise ValueError(f"prior_var must be 'layers', 'shared' or lists of module names, got {prior_var!r}")
    prefix = "network." if wrapped else ""
    groups = {}
    for modules in prior_var:
        keys = [prefix + module for module in modules]
        groups["+".join(keys)] = [n for n in names if any(n == key or n.startswith(key + ".") for key in keys)]
    found = [name for members in groups.values() for name in members]
    if sorted(found) != sorted(names):
        raise ValueError(f"prior_var must name every parameter once; expected {sorted(names)}, got {sorted(found)}")
    return groups


def _short(prior_var: float | dict[str, float]) -> str:
    if not isinstance(prior_var, dict):
        return f"{prior_var:.4g}"
    return "{" + ", ".join(f"{name!r}: {v:.3g}" for name, v in prior_var.items()) + "}"
