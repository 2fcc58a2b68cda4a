"""The search for the hyper-parameters of one module that maximise its marginal likelihood."""

import copy
import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from ntkgp._system.progress import Bar
from ntkgp._system.types import MeanFunction
from ntkgp.networks.layers import InputScales
from ntkgp.problem.build import build_problem
from ntkgp.problem.prior_mean import network_mean
from ntkgp.problem.problem import Problem
from ntkgp.problem.source import Source
from ntkgp.tangent.infinite.tangent import InfiniteTangent
from ntkgp.tuning.climb import Adam, Objective, QuasiNewton
from ntkgp.tuning.likelihood import NOISE, PRIOR, Likelihood, Logs
from ntkgp.tuning.result import Tuned

NOISE_RANGE = (1e-6, 10.0)  # of noise variances, relative to the mean square of the residuals
SCALE_RANGE = (1e-3, 1e3)  # of scales, relative to their start
PRIOR_RANGE = (1e-6, 1e6)  # of prior variances, relative to their start: an equal share of the residuals per group
# Factors of noise and scales of each start. From little noise, quasi-Newton steps end in poor maxima.
MOVES = [(1.0, 1.0), (0.01, 1.0), (0.01, 1 / 3), (0.1, 3.0), (1.0, 0.1), (0.01, 10.0)]
SMOOTH_MOVES = [(1.0, 1.0), (1.0, 0.5), (1.0, 2.0), (1.0, 0.25), (1.0, 4.0), (0.1, 1.0)]
STARTING_ROWS = 500  # rows N·C that choose among the starts for an infinite network
MARGIN = 0.05  # a value this close to an edge of its range counts as at the edge, in units of the logarithm
FLAT_NATS = 0.5  # the likelihood is flat if it falls by less than this when a hyper-parameter is doubled or halved


@dataclass(frozen=True)
class SearchOptions:
    """The options of :func:`tune`."""

    input_scales: bool
    weight_scales: bool
    prior_var: str | Sequence[Sequence[str]]
    noise_var: str | float | Tensor
    prior_mean: MeanFunction | None
    parameters: tuple[str, ...] | None
    starts: int
    steps: int
    hyper_prior: float | None
    shares: tuple[float, ...] | None = None  # centres of the prior variances, relative to an equal share of the data's variance

    @property
    def evaluations(self) -> int:
        """Number of likelihood evaluations in one search."""
        return (self.starts * max(1, self.steps // 4) if self.starts > 1 else 0) + self.steps


@dataclass
class Search:
    """The search for one module: several short climbs of its likelihood, then a long climb from the best of them."""

    module: nn.Module
    x: Tensor
    y: Tensor
    options: SearchOptions
    bar: Bar
    bounds: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def run(self) -> Tuned:
        """Run the search; return the best point found, with notes for the user."""
        return self._run(None)

    def near(self, tuned: Tuned, steps: int) -> Tuned:
        """Climb from the hyper-parameters of another search of the same module, for at most so many evaluations."""
        self.options = replace(self.options, starts=1, steps=steps)
        return self._run(tuned)

    def _run(self, near: Tuned | None) -> Tuned:
        wrapped = self._wrapped()
        parameters = self.options.parameters
        if parameters is not None and wrapped is not self.module:
            parameters = tuple(f"network.{name}" if name else "network" for name in parameters)
        known = self.options.noise_var if not isinstance(self.options.noise_var, str) else 1.0
        problem = build_problem(
            wrapped,
            Source(self.x, self.y, known),
            prior_mean=self.options.prior_mean,
            dtype=torch.float64,
            parameters=parameters,
        )
        groups = _groups(self.options.prior_var, list(problem.network.anchor), wrapped is not self.module)
        scales = {name: t for name, t in problem.network.module.named_buffers() if self._is_scale(problem, name)}
        infinite = isinstance(problem.operators.tangent, InfiniteTangent)
        weights = dict(problem.network.anchor) if self.options.weight_scales else {}
        likelihood = Likelihood(problem, list(groups.values()), base=weights)
        centre = self._centre(likelihood, scales, weights)
        start = likelihood.value(centre)
        starts = self._starts(centre, infinite) if near is None else [self._logs_of(near, centre)]
        steps = self.options.steps
        objective = Objective(likelihood, centre, self.bounds, self.options.hyper_prior)
        climb = QuasiNewton() if infinite else Adam()
        if len(starts) > 1:
            # Fewer points tell which start is best for an infinite network; the likelihood of a finite one is rugged.
            first = replace(objective, likelihood=self._of_few(likelihood)) if infinite else objective
            climbs = [climb.run(first, logs, max(1, steps // 4), False, self.bar) for logs in starts]
            starts = [max(climbs, key=lambda climb: climb[0])[1]]
        _, logs = climb.run(objective, starts[0], steps, True, self.bar)
        return self._result(wrapped, likelihood, groups, logs, start, parameters, near is not None)

    def _of_few(self, likelihood: Likelihood) -> Likelihood:
        """The likelihood of some of the points, from all over the data."""
        data, outputs = likelihood.problem.data, likelihood.problem.outputs
        count = max(1, STARTING_ROWS // outputs)
        if data.points <= count:
            return likelihood
        rows = torch.arange(count, device=data.x.device) * data.points // count
        few = replace(
            data, x=data.x[rows], residual=data.residual.unflatten(0, (-1, outputs))[rows].flatten(),
            noise_std=data.noise_std.unflatten(0, (-1, outputs))[rows].flatten(), batches=None, arrivals=(),
        )  # fmt: skip
        return Likelihood(likelihood.problem.with_data(few), likelihood.groups, likelihood.base)

    def _wrapped(self) -> nn.Module:
        """Return the module with input scales in front, if the user wants them and the inputs can be scaled."""
        has_scales = any(isinstance(part, InputScales) for part in self.module.modules())
        scalable = self.x.ndim == 2 and self.x.is_floating_point() and self.options.prior_mean is not network_mean
        if not self.options.input_scales or has_scales or not scalable:
            return self.module
        p = next(self.module.parameters())
        scales = InputScales(torch.ones(self.x.shape[1], dtype=p.dtype, device=p.device))
        wrapped = nn.Sequential(OrderedDict(scales=scales, network=self.module))
        wrapped.training = scales.training = self.module.training  # not .train(), which would reach the user's own parts
        return wrapped

    def _is_scale(self, problem: Problem, name: str) -> bool:
        path, _, leaf = name.rpartition(".")
        return (
            self.options.input_scales
            and leaf == "scale"
            and isinstance(problem.network.module.get_submodule(path), InputScales)
        )

    def _centre(self, likelihood: Likelihood, scales: dict[str, Tensor], weights: dict[str, Tensor]) -> Logs:
        """Return the start and set the bounds: current scales, a tenth of the residuals' mean square as noise, equal priors."""
        problem = likelihood.problem
        power = problem.data.residual.square().mean().clamp_min(torch.finfo(torch.float64).tiny ** 0.5)
        if not bool(torch.isfinite(power)):
            raise ValueError("the squares of the residuals y − prior_mean overflow in float64; rescale y")
        settings = {**{name: s.log() for name, s in scales.items()}, **{name: power.new_zeros(()) for name in weights}}
        settings = {name: log.clone() for name, log in settings.items()}
        with torch.no_grad():
            sizes = likelihood.kernels(settings).sizes()
        shares = torch.where(sizes > 0, power / (len(sizes) * sizes.clamp_min(1e-300)), torch.ones_like(sizes))
        if self.options.shares is not None:
            shares = shares * torch.tensor(self.options.shares, dtype=shares.dtype, device=shares.device)
        logs: Logs = {PRIOR: shares.log()}
        if self.options.noise_var == "outputs":
            logs[NOISE] = (0.1 * power).log().expand(problem.outputs).clone()
        elif isinstance(self.options.noise_var, str):
            if self.options.noise_var != "shared":
                raise ValueError(f"noise_var must be 'shared', 'outputs' or known values, got {self.options.noise_var!r}")
            logs[NOISE] = (0.1 * power).log().reshape(1)
        logs.update(settings)
        ranges = {NOISE: (NOISE_RANGE[0] / 0.1, NOISE_RANGE[1] / 0.1), PRIOR: PRIOR_RANGE}
        for name, log in logs.items():
            low, high = ranges.get(name, SCALE_RANGE)
            self.bounds[name] = (log + math.log(low), log + math.log(high))
        return logs

    def _logs_of(self, tuned: Tuned, centre: Logs) -> Logs:
        """The logarithms of what another search found, inside the bounds of this one."""
        prior = tuned.prior_var if isinstance(tuned.prior_var, dict) else {"": tuned.prior_var}
        values = {**dict(tuned.module.named_buffers()), PRIOR: torch.tensor(list(prior.values()), dtype=torch.float64)}
        values[NOISE] = torch.as_tensor(tuned.noise_var, dtype=torch.float64).reshape(-1)
        return {name: values[name].to(log).log().clamp(*self.bounds[name]) for name, log in centre.items()}

    def _starts(self, centre: Logs, infinite: bool) -> list[Logs]:
        """Return the starts: the centre, then others with other length scales, and for finite networks with less noise."""
        moves = SMOOTH_MOVES if infinite else MOVES
        starts = []
        for k in range(self.options.starts):
            noise, scale = moves[k % len(moves)]
            factors = {name: noise if name == NOISE else 1.0 if name == PRIOR else scale for name in centre}
            starts.append({name: log + math.log(factors[name]) for name, log in centre.items()})
        return starts

    def _result(
        self, module: nn.Module, likelihood: Likelihood, groups: dict[str, list[str]], logs: Logs, start: float,
        parameters: tuple[str, ...] | None, near: bool,
    ) -> Tuned:  # fmt: skip
        values = {name: log.exp() for name, log in logs.items()}
        tuned = copy.deepcopy(module)
        with torch.no_grad():
            tensors = {**dict(tuned.named_buffers()), **dict(tuned.named_parameters())}
            for name, value in values.items():
                if name not in (NOISE, PRIOR):
                    tensors[name].copy_(value * likelihood.base[name] if name in likelihood.base else value)
        noise = self.options.noise_var
        if isinstance(noise, str):
            noise = float(values[NOISE]) if len(values[NOISE]) == 1 else values[NOISE].unsqueeze(0)
        prior = values[PRIOR].tolist()
        named = {name: v for (key, names), v in zip(groups.items(), prior, strict=True) for name in key.split("+")}
        return Tuned(
            module=tuned,
            noise_var=noise,
            prior_var=prior[0] if self.options.prior_var == "shared" else named,
            log_marginal_likelihood=likelihood.value(logs),
            start=start,
            points=len(self.x),
            leave_one_out=math.nan,  # the caller computes it for all data
            notes=() if near else tuple(self._notes(likelihood, list(groups), logs)),
            prior_mean=self.options.prior_mean,
            parameters=parameters,
        )

    def _notes(self, likelihood: Likelihood, groups: list[str], logs: Logs) -> Iterator[str]:
        """Yield a note for each value at an edge of its range, and for each variance in which the likelihood is flat."""
        for name, log in logs.items():
            low, high = self.bounds[name]
            for k, label in enumerate(_labels(name, log, groups)):
                value = log.flatten()[k]
                # A scale at its lower edge needs no note: the feature does not matter.
                edge = "upper" if value > high.flatten()[k] - MARGIN else "lower" if value < low.flatten()[k] + MARGIN else ""
                if edge == "upper" or (edge and name in (NOISE, PRIOR)):
                    yield f"{label} sits at the {edge} edge of its range, {float(value.exp()):.3g}"
        best, kernels = likelihood.value(logs), likelihood.kernels(logs)
        for name in (name for name in (NOISE, PRIOR) if name in logs):
            for k, label in enumerate(_labels(name, logs[name], groups)):
                one = torch.zeros_like(logs[name])
                one[k] = math.log(2)
                moved = [likelihood.value({**logs, name: logs[name] + step}, kernels) for step in (one, -one)]
                if best - min(moved) < FLAT_NATS:
                    drop = best - min(moved)
                    yield f"the likelihood is flat in {label}: doubling or halving it costs at most {drop:.2g} nats"


def _labels(name: str, log: Tensor, groups: list[str]) -> list[str]:
    """Return a label for each number of a hyper-parameter."""
    if name == PRIOR:
        return [f"prior_var of {group!r}" if group else "prior_var" for group in groups]
    return [name] if log.numel() == 1 else [f"{name}[{k}]" for k in range(log.numel())]


def _groups(prior_var: str | Sequence[Sequence[str]], names: list[str], wrapped: bool) -> dict[str, list[str]]:
    """Return the parameter names of each group; the key is the module names of the group, joined by '+'."""
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
        raise ValueError(f"prior_var must name every parameter exactly once; expected {sorted(names)}, got {sorted(found)}")
    return groups
